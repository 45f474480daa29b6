"""`Session`, which loads or compiles a model and runs it with onnxruntime's method names."""
