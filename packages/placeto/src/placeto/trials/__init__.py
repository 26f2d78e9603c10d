"""Trials of placers on problems: what is recorded, resumed and told."""
