"""From bytes to incidents: what a log says, line by line."""
