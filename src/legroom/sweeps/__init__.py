"""Many trainings side by side, packed by the memory that they need."""
