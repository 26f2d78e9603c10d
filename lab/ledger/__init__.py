"""The ledger: steps that others measured, and the same steps simulated."""
