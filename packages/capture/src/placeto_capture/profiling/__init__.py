"""How long each op takes, measured."""
