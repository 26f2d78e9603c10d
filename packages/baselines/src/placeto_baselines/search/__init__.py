"""Search over placements: all of them, and moves of groups of one or of all levels."""
