"""`Session`: runs a model under the names that users of onnxruntime know."""
