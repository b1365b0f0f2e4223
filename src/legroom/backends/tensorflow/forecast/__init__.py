"""What a step will take, worked out: by its graph, by a probe of it, or by what XLA says."""
