"""Steps in micro-batches (GPipe, Huang et al. 2019): one step, the batch in parts."""
