"""The step that survives: tried whole, then in slices, each time with what is known."""
