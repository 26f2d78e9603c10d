"""Graph embeddings: one vector for the current group of each state."""
