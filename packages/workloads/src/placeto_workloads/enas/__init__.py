"""The ENAS controller, its super-networks and their training (Pham et al. 2018)."""
