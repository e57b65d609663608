"""Merging: a recipe and checkpoints in, a plan, one checkpoint out."""
