"""What a guarded training shows while it runs: samples of memory, progress, TensorBoard."""
