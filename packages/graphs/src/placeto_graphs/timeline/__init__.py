"""One step as data: what ran where and when, simulated or measured, and how it is drawn."""
