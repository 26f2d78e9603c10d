"""Which ops move together: co-location rules, then merging down to few groups."""
