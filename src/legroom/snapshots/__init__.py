"""Snapshots: all that a training is, to disk and back."""
