"""Families of similar models, for training a policy on some and trying it on others."""
