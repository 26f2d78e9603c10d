"""List schedulers: the order of ops first, then a device for each group."""
