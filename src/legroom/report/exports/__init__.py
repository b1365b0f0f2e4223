"""Records for other tools: TensorBoard, Prometheus, Perfetto."""
