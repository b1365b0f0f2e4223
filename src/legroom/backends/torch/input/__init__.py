"""Data, and the place of a training in it."""
