"""A step on its whole batch, and the trainer that asks for it; steps written by hand."""
