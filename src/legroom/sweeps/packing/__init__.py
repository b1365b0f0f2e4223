"""How trials are packed: what each needs, and which starts next."""
