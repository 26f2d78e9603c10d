"""Architectures as ENAS finds them (Pham et al. 2018); begin to read in ``search.py``."""
