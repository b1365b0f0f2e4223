"""Data: pipelines that are read, and the place of a training in them."""
