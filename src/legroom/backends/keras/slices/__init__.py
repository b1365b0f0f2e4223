"""A step compared with its slices, and what slices need of Keras."""
