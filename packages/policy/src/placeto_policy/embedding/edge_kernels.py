"""Messages that depend on the edge they are sent along: compiled loops over a block of states.

Arrays are those of `kernels`. What is said of an edge is how strong it is (see
`Topology.edge_strengths`), and the same once more where it is cut: where the groups at its ends are
on different devices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_policy.embedding.compiled_sums import Floats
from placeto_policy.embedding.compiled_sums import compiled_sums
from placeto_policy.topology import Neighbours

EDGE_FEATURES = 2


class EdgeInputs(NamedTuple):
    """What is known of the edges of a graph with M of them, in N states.

    Attributes
    ----------
    strengths : float32[M]
        In the order of the neighbours.
    placement : int64[N, G]
        The device of each group.
    """

    strengths: Floats
    placement: NDArray[np.int64]


@compiled_sums
def cut_strengths(
    edges: EdgeInputs, first: int, sender: int, receiver: int, strength: np.float32, cut: Floats
) -> None:
    """Fill cut[L] with the strength of an edge in the states from ``first`` on that cut it."""
    for n in range(len(cut)):
        there, here = edges.placement[first + n, sender], edges.placement[first + n, receiver]
        cut[n] = strength if there != here else np.float32(0)


@compiled_sums
def sum_edges(
    neighbours: Neighbours,
    scale: np.float32,
    edges: EdgeInputs,
    first: int,
    weight: Floats,
    x: Floats,
    y: Floats,
) -> None:
    """``y[:, v] = scale * sum of relu(x[:, u] + weight @ features of u's edge to v)``.

    That is over the neighbours u of v, for x and y[F, G, L] and weight[F, 2], in the L states from
    ``first`` on.
    """
    offsets, senders = neighbours
    cut = np.empty(x.shape[2], np.float32)
    y[:] = 0
    for v in range(x.shape[1]):
        for e in range(offsets[v], offsets[v + 1]):
            strength = edges.strengths[e]
            cut_strengths(edges, first, senders[e], v, strength, cut)
            for f in range(x.shape[0]):
                row, other = y[f, v], x[f, senders[e]]
                always, if_cut = weight[f, 0] * strength, weight[f, 1]
                for n in range(len(cut)):
                    row[n] += scale * max(other[n] + always + if_cut * cut[n], np.float32(0))


@compiled_sums
def sum_edges_backward(
    neighbours: Neighbours,
    scale: np.float32,
    edges: EdgeInputs,
    first: int,
    weight: Floats,
    x: Floats,
    to_y: Floats,
    to_x: Floats,
    weight_gradient: Floats,
) -> None:
    """Fill the gradient of x, and add to that of the weight, given that of y in `sum_edges`."""
    offsets, senders = neighbours
    cut = np.empty(x.shape[2], np.float32)
    to_x[:] = 0
    for v in range(x.shape[1]):
        for e in range(offsets[v], offsets[v + 1]):
            strength = edges.strengths[e]
            cut_strengths(edges, first, senders[e], v, strength, cut)
            for f in range(x.shape[0]):
                incoming, other, result = to_y[f, v], x[f, senders[e]], to_x[f, senders[e]]
                always, if_cut = weight[f, 0] * strength, weight[f, 1]
                total, total_if_cut = np.float32(0), np.float32(0)
                for n in range(len(cut)):
                    passes = other[n] + always + if_cut * cut[n] > 0
                    gradient = scale * incoming[n] if passes else np.float32(0)
                    result[n] += gradient
                    total += gradient
                    total_if_cut += gradient * cut[n]
                weight_gradient[f, 0] += strength * total
                weight_gradient[f, 1] += total_if_cut
