"""Models imagined after a change, traced, or made into files for use."""
