"""How the constants of the cost model were found, and how well they hold."""
