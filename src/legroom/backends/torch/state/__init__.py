"""All that a training changes, read and written."""
