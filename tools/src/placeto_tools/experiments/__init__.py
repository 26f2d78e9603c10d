"""The experiments of Addanki et al. (2019): which trials they are made of, and what is told."""
