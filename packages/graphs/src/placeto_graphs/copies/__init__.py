"""Copies of a step that share a batch: data parallel, and with weights divided among them."""
