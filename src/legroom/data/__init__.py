"""Input that legroom controls: where it is, and how it gets there again."""
