"""Profiling: how long each op of a captured graph takes on a torch device."""
