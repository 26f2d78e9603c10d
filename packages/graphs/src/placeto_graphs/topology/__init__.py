"""Algorithms on the shape of a graph alone: order, reachability, rows of neighbours."""
