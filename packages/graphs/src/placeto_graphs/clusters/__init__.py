"""Clusters: what is known of devices and links, and the texts and files that describe them."""
