"""Efficiencies of device kinds: their fits, and checks of them."""
