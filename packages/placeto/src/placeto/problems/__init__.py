"""From what a user names to a problem: sources, graphs, groups, devices."""
