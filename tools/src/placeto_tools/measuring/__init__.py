"""Steps on devices of this machine, and how long they take."""
