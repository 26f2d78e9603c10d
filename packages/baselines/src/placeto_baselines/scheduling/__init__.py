"""List schedulers: the order of groups first, then a device for each."""
