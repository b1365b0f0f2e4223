"""A step in slices that make the same update, and the comparison that tells whether they do."""
