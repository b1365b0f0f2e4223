"""What a training changes, read and written."""
