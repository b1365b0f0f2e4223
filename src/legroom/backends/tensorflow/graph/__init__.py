"""A step as a graph that is read, counted and put in order, not run."""
