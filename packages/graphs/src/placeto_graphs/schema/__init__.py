"""The types that the packages agree on."""
