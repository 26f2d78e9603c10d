"""Search over placements: sampling, and moves of single groups."""
