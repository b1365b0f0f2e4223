"""Training steps that users write themselves, and the functions that a step calls."""
