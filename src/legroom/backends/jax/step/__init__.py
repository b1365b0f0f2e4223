"""A step, run whole or in slices."""
