"""What grows from training to training, what holds it, and how it is let go."""
