"""Models that are read and not trained."""
