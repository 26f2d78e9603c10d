"""Training steps of models that come as files: exported programs and ONNX."""
