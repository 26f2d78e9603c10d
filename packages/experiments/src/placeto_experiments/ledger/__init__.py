"""The ledger: what others measured, beside what the simulator says of it."""
