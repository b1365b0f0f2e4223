"""How slices make up a step."""
