"""What is kept of a sweep on disk, and found again."""
