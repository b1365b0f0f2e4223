"""What steps will need: compiled for shapes alone, and read off what the compiler tells."""
