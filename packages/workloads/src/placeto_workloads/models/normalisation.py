"""Batch normalisation as the networks of images use it."""

from torch import nn

EPSILON = 1e-3  # of the published networks, Inception-V3 and NASNet-A


def batch_normalisation(channels: int) -> nn.BatchNorm2d:
    """Return batch normalisation that keeps moving averages, and no count of batches.

    PyTorch reads the count only where there is no momentum. In a graph of ops it would be one op
    per layer that nothing else is joined to, and that no grouping could put anywhere.

    Parameters
    ----------
    channels
        Of its input and output.
    """
    layer = nn.BatchNorm2d(channels, eps=EPSILON)
    layer.num_batches_tracked = None
    return layer
