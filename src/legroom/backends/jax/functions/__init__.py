"""Training steps written by hand, as programs of JAX that can be cut where batches end."""
