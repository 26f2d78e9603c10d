"""Headers of files of weights: the configuration of a model, and the bytes of each parameter.

Only headers are read, never the weights behind them. Begin to read in `stored_model`.
"""
