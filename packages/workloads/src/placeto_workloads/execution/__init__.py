"""A captured step that can be run for real: what `placeto-execution` runs."""
