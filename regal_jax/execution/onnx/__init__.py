"""ONNX models in the order of a plan."""
