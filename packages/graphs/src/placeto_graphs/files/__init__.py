"""Reading and writing: problems, graphs, clusters, placements, profiles."""
