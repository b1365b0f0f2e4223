"""What is Keras on any framework."""
