"""What no placement can beat, and what the best placement costs."""
