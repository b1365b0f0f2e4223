"""What stays behind after a training."""
