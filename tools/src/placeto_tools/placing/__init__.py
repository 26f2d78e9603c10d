"""From a problem to a placement, and why it is what it is."""
