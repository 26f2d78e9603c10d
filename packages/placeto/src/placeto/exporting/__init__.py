"""Placements in forms that other libraries take."""
