"""Graph partitioners: balanced work, little traffic."""
