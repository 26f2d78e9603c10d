"""The models of the experiments, in plain PyTorch, as training steps."""
