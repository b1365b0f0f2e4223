"""Memory that grows: readings in loops, their trend, and who holds it."""
