"""The same step in slices."""
