"""Placements in the forms of other libraries."""
