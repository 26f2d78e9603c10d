"""Measurements of this machine: times of ops and links."""
