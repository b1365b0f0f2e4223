"""What a process is: its script, its parent, its garbage, whether legroom is off."""
