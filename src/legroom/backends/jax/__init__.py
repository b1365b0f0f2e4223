"""What a framework must do, on JAX."""
