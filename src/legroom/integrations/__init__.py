"""legroom in tools that search for the best training: each in a module of its name."""
