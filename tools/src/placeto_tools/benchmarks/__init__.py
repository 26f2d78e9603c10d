"""How fast the packages are, and the tables of some pages."""
