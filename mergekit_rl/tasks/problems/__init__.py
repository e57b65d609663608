"""The tasks that come along: one file each, found by name."""
