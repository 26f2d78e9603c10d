"""Placements that no search finds: one device, the CPU, chance."""
