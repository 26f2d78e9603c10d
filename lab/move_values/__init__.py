"""What single moves of a placement are worth, and a placer by it: an experiment."""
