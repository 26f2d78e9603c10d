"""Which graph each worker of an update learns from."""

import math
from collections.abc import Sequence

import numpy as np

from placeto_policy.settings import Settings

GRAPHS_STREAM = 2**32 - 3  # a worker's index that no trainer has


def graphs_of_workers(
    sizes: Sequence[int], settings: Settings, *, update: int, seed: int
) -> list[int]:
    """Return the index of a graph for each worker.

    Parameters
    ----------
    sizes
        How many groups each graph has.
    settings
        Their `graph_sampling`, `workers` and `updates`.
    update
        How many updates were made before.
    seed
        That of the training.

    Examples
    --------
    >>> sizes, settings = [64, 8, 32], Settings(workers=2, updates=6)
    >>> [graphs_of_workers(sizes, settings, update=update, seed=0) for update in range(3)]
    [[0, 1], [2, 0], [1, 2]]

    Smaller graphs first; all of them in the second half:

    >>> smaller = Settings(workers=2, updates=6, graph_sampling="small-first")
    >>> [graphs_of_workers(sizes, smaller, update=update, seed=0) for update in range(4)]
    [[1, 2], [1, 2], [2, 0], [1, 2]]
    """
    count = len(sizes)
    if settings.graph_sampling == "random":
        generator = np.random.default_rng((seed, GRAPHS_STREAM, update))
        drawn: list[int] = generator.integers(count, size=settings.workers).tolist()
        return drawn
    among = list(range(count))
    if settings.graph_sampling == "small-first":
        among.sort(key=lambda graph: sizes[graph])
        known = math.ceil(count * 2 * (update + 1) / settings.updates)
        among = among[: max(known, settings.workers)]
    first = update * settings.workers
    return [among[(first + worker) % len(among)] for worker in range(settings.workers)]
