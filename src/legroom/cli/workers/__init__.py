"""The child processes that commands ask."""
