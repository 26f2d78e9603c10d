"""Lower bounds of the runtime and the memory of all placements."""
