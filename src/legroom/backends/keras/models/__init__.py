"""Models read, changed and built again."""
