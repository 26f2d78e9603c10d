"""How a batch is divided among copies of a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchDivision:
    """Copies of a model, each with its own samples of the batch.

    Attributes
    ----------
    samples : tuple of int
        Number of samples of each copy.
    devices : tuple of str
        Name of the first device of each copy.
    shard : bool
        Whether the copies divide the weights among them.
    micro_batches : int
        Number of micro-batches in which each copy runs.
    """

    samples: tuple[int, ...]
    devices: tuple[str, ...]
    shard: bool = False
    micro_batches: int = 1
