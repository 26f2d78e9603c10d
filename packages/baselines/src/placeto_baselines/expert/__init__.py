"""What a person who knows the model would do."""
