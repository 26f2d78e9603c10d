"""Training steps of models that other libraries define, without weights and without a network."""
