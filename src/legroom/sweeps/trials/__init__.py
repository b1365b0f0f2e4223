"""One trial: its process, its end, and what becomes of it."""
