"""Measurements of this machine: times of ops, links, contention."""
