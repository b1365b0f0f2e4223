"""What stays behind."""
