"""The shapes of random steps: which layer reads the output of which."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

# How many layers there are, and (layer, layer that reads its output), from lower to higher.
Shape = tuple[int, list[tuple[int, int]]]


def chain(generator: np.random.Generator) -> Shape:
    """Return layers one after the other, some of which skip a few."""
    count = int(generator.integers(24, 160))
    readers = {(layer, layer + 1) for layer in range(count - 1)}
    share = generator.uniform(0.0, 0.3)
    for layer in range(count - 2):
        if generator.random() < share:
            readers.add((layer, min(count - 1, layer + int(generator.integers(2, 6)))))
    return count, sorted(readers)


def layered(generator: np.random.Generator) -> Shape:
    """Return ranks of layers, each of which reads some of the rank before it; all are read."""
    ranks = [int(width) for width in generator.integers(1, generator.integers(3, 10), size=25)]
    first = np.concatenate([[0], np.cumsum(ranks)]).tolist()
    density = generator.uniform(0.1, 0.5)
    readers: set[tuple[int, int]] = set()
    for rank in range(1, len(ranks)):
        before = range(first[rank - 1], first[rank])
        here = range(first[rank], first[rank + 1])
        reads = generator.random((len(before), len(here))) < density
        reads[generator.integers(len(before), size=len(here)), np.arange(len(here))] = True
        unread = np.flatnonzero(~reads.any(axis=1))
        reads[unread, generator.integers(len(here), size=len(unread))] = True
        readers |= {
            (before[source], here[reader]) for source, reader in np.argwhere(reads).tolist()
        }
    return first[-1], sorted(readers)


def fork_join(generator: np.random.Generator) -> Shape:
    """Return modules of parallel branches, as image networks have them."""
    readers: list[tuple[int, int]] = []
    last, count = 0, 1
    most = int(generator.integers(2, 8))
    for _ in range(int(generator.integers(4, 16))):
        ends = []
        for _ in range(int(generator.integers(1, most + 1))):
            end = last
            for _ in range(int(generator.integers(1, 6))):
                readers.append((end, count))
                end, count = count, count + 1
            ends.append(end)
        readers += [(end, count) for end in ends]
        last, count = count, count + 1
    return count, sorted(readers)


def series_parallel(generator: np.random.Generator) -> Shape:
    """Return what comes of one edge by doing again: two in a row, or two side by side."""
    edges = [(0, 1)]
    count = 2
    parallel = generator.uniform(0.2, 0.6)
    for _ in range(int(generator.integers(40, 220))):
        index = int(generator.integers(len(edges)))
        source, reader = edges[index]
        if generator.random() >= parallel:
            edges[index] = (source, count)
        else:
            edges.append((source, count))
        edges.append((count, reader))
        count += 1
    return _in_order(count, edges)


def grid(generator: np.random.Generator) -> Shape:
    """Return layers unrolled over steps, as recurrent networks are."""
    steps, layers = int(generator.integers(6, 32)), int(generator.integers(2, 7))
    readers = []
    for step in range(steps):
        for layer in range(layers):
            here = step * layers + layer
            if step:
                readers.append((here - layers, here))
            if layer:
                readers.append((here - 1, here))
    return steps * layers, sorted(readers)


def _in_order(count: int, edges: list[tuple[int, int]]) -> Shape:
    """Return layers with numbers by which each is read by higher ones only."""
    readers: dict[int, list[int]] = {}
    waits_for = np.zeros(count, np.int64)
    for source, reader in edges:
        readers.setdefault(source, []).append(reader)
        waits_for[reader] += 1
    order: dict[int, int] = {}
    ready = [0]
    while ready:
        layer = ready.pop()
        order[layer] = len(order)
        for reader in readers.get(layer, []):
            waits_for[reader] -= 1
            if not waits_for[reader]:
                ready.append(reader)
    return count, sorted({(order[source], order[reader]) for source, reader in edges})


SHAPES: Mapping[str, Callable[[np.random.Generator], Shape]] = MappingProxyType(
    {
        "chain": chain,
        "layered": layered,
        "fork-join": fork_join,
        "series-parallel": series_parallel,
        "grid": grid,
    }
)
