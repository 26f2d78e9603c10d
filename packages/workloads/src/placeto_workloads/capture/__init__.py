"""Capture: the computation graph of a PyTorch model, from running it on fake tensors."""
