"""What the policy makes of a graph: one vector for the current group of each state."""
