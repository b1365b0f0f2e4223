"""What steps will need: run on tensors without memory, and replayed through the allocator."""
