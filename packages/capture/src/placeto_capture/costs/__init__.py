"""The time of ops on each kind of device."""
