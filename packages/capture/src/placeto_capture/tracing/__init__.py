"""One step of a model, recorded op by op."""
