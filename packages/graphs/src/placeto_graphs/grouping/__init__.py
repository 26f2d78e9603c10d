"""Which ops move together: co-location, merging, and reachability among the groups."""
