"""The YAML: what a merge recipe may say, where it says it, and what it means."""
