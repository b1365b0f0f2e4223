"""Records in a terminal: lines, panels, tables."""
