"""The doctor: what grows, what the input costs, what a leaner model saves."""
