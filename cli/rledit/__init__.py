"""The command line of mergekit_rl."""
