"""Variables that a training changes, and copies of them."""
