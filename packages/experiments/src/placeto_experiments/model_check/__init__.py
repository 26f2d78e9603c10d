"""Which models of libraries can be captured, and how they are placed."""
