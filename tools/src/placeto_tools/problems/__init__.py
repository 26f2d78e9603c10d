"""From what a user names to a problem."""
