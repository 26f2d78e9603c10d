"""Algorithms on the shape of a graph alone: topological order, rows of neighbours."""
