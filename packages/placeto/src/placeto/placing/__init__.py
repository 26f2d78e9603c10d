"""From a problem to a placement, and why it is as it is."""
