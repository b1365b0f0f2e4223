"""What a step took where it was really run, or compiled."""
