"""What the devices of this machine do: profiles of ops, links, contention."""
