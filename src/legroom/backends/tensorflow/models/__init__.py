"""Models read, and built again after a change."""
