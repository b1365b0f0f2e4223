"""Records as HTML: the page, and pieces for notebooks."""
