"""Message passing and pooled sums over a block of states: compiled loops.

Arrays of nodes are ``float32[F, G, L]``: feature, group, state. The innermost loops run over the
states, whose graph is the same, so that the processor works on many states at once.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_policy.embedding.compiled_sums import Floats
from placeto_policy.embedding.compiled_sums import compiled_sums
from placeto_policy.topology import Neighbours

MANY = 16  # states: from here on, a loop over them alone is long enough to be fast


class Layers(NamedTuple):
    """The two layers of message passing in one direction, or their gradients.

    Attributes
    ----------
    message_weight, message_bias : float32[F, F], float32[F]
        Of f, which makes a message of a node.
    update_weight, update_bias : float32[F, F], float32[F]
        Of g, which makes an update of the sum of messages.
    """

    message_weight: Floats
    message_bias: Floats
    update_weight: Floats
    update_bias: Floats


@compiled_sums
def affine(weight: Floats, bias: Floats, x: Floats, y: Floats) -> None:
    """``y = weight @ x + bias`` for x[I, J] and y[O, J]."""
    inputs = x.shape[0]
    for o in range(y.shape[0]):
        row = y[o]
        for j in range(len(row)):
            row[j] = bias[o]
        i = 0
        while i + 4 <= inputs:
            a, b, c, d = x[i], x[i + 1], x[i + 2], x[i + 3]
            p, q, r, s = weight[o, i], weight[o, i + 1], weight[o, i + 2], weight[o, i + 3]
            for j in range(len(row)):
                row[j] += p * a[j] + q * b[j] + r * c[j] + s * d[j]
            i += 4
        while i < inputs:
            a, p = x[i], weight[o, i]
            for j in range(len(row)):
                row[j] += p * a[j]
            i += 1


@compiled_sums
def rectify(x: Floats) -> None:
    """``x = max(x, 0)`` for x[I, J]."""
    for i in range(x.shape[0]):
        row = x[i]
        for j in range(len(row)):
            row[j] = max(row[j], np.float32(0))


@compiled_sums
def mask_gradient(gradient: Floats, output: Floats) -> None:
    """Let a gradient [I, J] pass where the output of a ReLU is positive."""
    for i in range(gradient.shape[0]):
        row, out = gradient[i], output[i]
        for j in range(len(row)):
            row[j] = row[j] if out[j] > 0 else np.float32(0)


@compiled_sums
def add_products(left: Floats, right: Floats, weight: Floats, bias: Floats) -> None:
    """``weight += left @ right.T`` and ``bias += sum of left`` for left[O, J] and right[I, J]."""
    for o in range(left.shape[0]):
        row = left[o]
        total = np.float32(0)
        for j in range(len(row)):
            total += row[j]
        bias[o] += total
        for i in range(right.shape[0]):
            other = right[i]
            total = np.float32(0)
            for j in range(len(row)):
                total += row[j] * other[j]
            weight[o, i] += total


@compiled_sums
def sum_neighbours_of_few(neighbours: Neighbours, scale: np.float32, x: Floats, y: Floats) -> None:
    """Do what `sum_neighbours` does, in loops over features and states put side by side first."""
    offsets, senders = neighbours
    width, num_groups, count = x.shape
    rows = np.empty((num_groups, width * count), np.float32)
    for f in range(width):
        for u in range(num_groups):
            for n in range(count):
                rows[u, f * count + n] = x[f, u, n]
    total = np.empty(width * count, np.float32)
    for v in range(num_groups):
        total[:] = 0
        for e in range(offsets[v], offsets[v + 1]):
            row = rows[senders[e]]
            for i in range(len(total)):
                total[i] += row[i]
        for f in range(width):
            for n in range(count):
                y[f, v, n] = scale * total[f * count + n]


@compiled_sums
def sum_neighbours(neighbours: Neighbours, scale: np.float32, x: Floats, y: Floats) -> None:
    """``y[:, v] = scale * sum of x[:, u]`` over the neighbours u of v."""
    if x.shape[2] < MANY:
        sum_neighbours_of_few(neighbours, scale, x, y)
        return
    offsets, senders = neighbours
    for f in range(x.shape[0]):
        for v in range(x.shape[1]):
            row = y[f, v]
            for n in range(len(row)):
                row[n] = 0
            for e in range(offsets[v], offsets[v + 1]):
                other = x[f, senders[e]]
                for n in range(len(row)):
                    row[n] += scale * other[n]


@compiled_sums
def pass_messages(
    neighbours: Neighbours,
    scale: np.float32,
    layers: Layers,
    start: Floats,
    messages: Floats,
    sums: Floats,
    updates: Floats,
    rounds: int,
    own: np.float32,
) -> Floats:
    """Return float32[F, G, L] after all rounds, and keep what each round made if there is room.

    ``messages``, ``sums`` and ``updates`` are [R, F, G, L] for R rounds that are kept, or R = 1.
    ``own`` is how much of its own features a node keeps in each round.
    """
    width = start.shape[0]
    flat = (width, start.shape[1] * start.shape[2])
    nodes = start.copy()
    for step in range(rounds):
        kept = step % len(messages)
        sent = messages[kept].reshape(flat)
        affine(layers.message_weight, layers.message_bias, nodes.reshape(flat), sent)
        rectify(sent)
        sum_neighbours(neighbours, scale, messages[kept], sums[kept])
        updated = updates[kept].reshape(flat)
        affine(layers.update_weight, layers.update_bias, sums[kept].reshape(flat), updated)
        rectify(updated)
        add(own, start.reshape(flat), updated, nodes.reshape(flat))
    return nodes


@compiled_sums
def add(factor: np.float32, left: Floats, right: Floats, total: Floats) -> None:
    """``total = factor * left + right`` for three [I, J]."""
    for i in range(left.shape[0]):
        a, b, c = left[i], right[i], total[i]
        for j in range(len(c)):
            c[j] = factor * a[j] + b[j]


@compiled_sums
def embed_nodes(
    neighbours: Neighbours,
    scale: np.float32,
    layers: Layers,
    rounds: int,
    own: np.float32,
    features: Floats,
    nodes: Floats,
    block: tuple[int, int],
) -> None:
    """Fill nodes[F, G, N] of a block of the N states from features[F, G, N], in one direction."""
    first, last = block
    start = features[:, :, first:last].copy()
    work = np.empty((3, 1, *start.shape), np.float32)
    nodes[:, :, first:last] = pass_messages(
        neighbours, scale, layers, start, work[0], work[1], work[2], rounds, own
    )


@compiled_sums
def embed_nodes_backward(
    neighbours: Neighbours,
    neighbours_back: Neighbours,
    scale: np.float32,
    layers: Layers,
    rounds: int,
    own: np.float32,
    features: Floats,
    gradient: Floats,
    block: tuple[int, int],
    layers_gradient: Layers,
) -> None:
    """Add to the gradients of the weights, given that of nodes[F, G, N].

    The rounds are run again: to keep them for all states would take more memory than caches hold.
    """
    first, last = block
    start = features[:, :, first:last].copy()
    shape = start.shape
    flat = (shape[0], shape[1] * shape[2])
    work = np.empty((3, rounds, *shape), np.float32)
    messages, sums, updates = work[0], work[1], work[2]
    pass_messages(neighbours, scale, layers, start, messages, sums, updates, rounds, own)
    message_transposed = np.ascontiguousarray(layers.message_weight.T)
    update_transposed = np.ascontiguousarray(layers.update_weight.T)
    zeros = np.zeros(shape[0], np.float32)
    to_nodes = gradient[:, :, first:last].copy()
    to_sums = np.empty(shape, np.float32)
    to_messages = np.empty(shape, np.float32)
    nodes = np.empty(shape, np.float32)
    for back in range(rounds):
        step = rounds - 1 - back
        mask_gradient(to_nodes.reshape(flat), updates[step].reshape(flat))
        add_products(
            to_nodes.reshape(flat),
            sums[step].reshape(flat),
            layers_gradient.update_weight,
            layers_gradient.update_bias,
        )
        affine(update_transposed, zeros, to_nodes.reshape(flat), to_sums.reshape(flat))
        sum_neighbours(neighbours_back, scale, to_sums, to_messages)
        mask_gradient(to_messages.reshape(flat), messages[step].reshape(flat))
        if step:
            add(own, start.reshape(flat), updates[step - 1].reshape(flat), nodes.reshape(flat))
        else:
            nodes[:] = start
        add_products(
            to_messages.reshape(flat),
            nodes.reshape(flat),
            layers_gradient.message_weight,
            layers_gradient.message_bias,
        )
        affine(message_transposed, zeros, to_messages.reshape(flat), to_nodes.reshape(flat))


class RelatedInputs(NamedTuple):
    """What sums over sets of nodes are taken of.

    Attributes
    ----------
    sets : int8[G, G]
        ``sets[v, u]`` is the set of u as seen from v.
    current : int64[N]
        The v of each state.
    weight, bias : float32[S, O, I], float32[S, O]
        A layer for each set.
    nodes : float32[I, G, N]
        The nodes of each state.
    """

    sets: NDArray[np.int8]
    current: NDArray[np.int64]
    weight: Floats
    bias: Floats
    nodes: Floats


@compiled_sums
def sum_related(inputs: RelatedInputs, sums: Floats, block: tuple[int, int]) -> None:
    """Fill sums[S, O, N] of a block: ``sum of relu(weight[i] @ x_u + bias[i])`` over each set i."""
    sets, current, weight, bias, nodes = inputs
    first, last = block
    count = last - first
    inside = np.empty(count, np.float32)
    x = np.empty((nodes.shape[0], count), np.float32)
    y = np.empty((weight.shape[1], count), np.float32)
    sums[:, :, first:last] = 0
    for u in range(nodes.shape[1]):
        x[:] = nodes[:, u, first:last]
        for i in range(len(weight)):
            if not select(sets, current[first:last], u, i, inside):
                continue
            affine(weight[i], bias[i], x, y)
            for o in range(len(y)):
                row, total = y[o], sums[i, o, first:last]
                for n in range(count):
                    total[n] += max(row[n], np.float32(0)) * inside[n]


@compiled_sums
def sum_related_backward(
    inputs: RelatedInputs,
    gradient: Floats,
    block: tuple[int, int],
    weight_gradient: Floats,
    bias_gradient: Floats,
    nodes_gradient: Floats,
) -> None:
    """Add to the gradients of weights and biases, and fill that of nodes, given that of sums."""
    sets, current, weight, bias, nodes = inputs
    first, last = block
    count = last - first
    inside = np.empty(count, np.float32)
    x = np.empty((nodes.shape[0], count), np.float32)
    y = np.empty((weight.shape[1], count), np.float32)
    to_x = np.empty_like(x)
    zeros = np.zeros(len(x), np.float32)
    transposed = np.empty((weight.shape[0], weight.shape[2], weight.shape[1]), np.float32)
    for i in range(len(weight)):
        transposed[i] = weight[i].T
    nodes_gradient[:, :, first:last] = 0
    for u in range(nodes.shape[1]):
        x[:] = nodes[:, u, first:last]
        for i in range(len(weight)):
            if not select(sets, current[first:last], u, i, inside):
                continue
            affine(weight[i], bias[i], x, y)
            for o in range(len(y)):
                row, incoming = y[o], gradient[i, o, first:last]
                for n in range(count):
                    row[n] = incoming[n] * inside[n] if row[n] > 0 else np.float32(0)
            add_products(y, x, weight_gradient[i], bias_gradient[i])
            affine(transposed[i], zeros, y, to_x)
            for f in range(len(to_x)):
                row, total = to_x[f], nodes_gradient[f, u, first:last]
                for n in range(count):
                    total[n] += row[n]


@compiled_sums
def select(
    sets: NDArray[np.int8],
    current: NDArray[np.int64],
    group: int,
    chosen: int,
    inside: Floats,
) -> bool:
    """Set inside[n] to whether a group is in the set of each current group; say if in any."""
    found = False
    for n in range(len(current)):
        belongs = sets[current[n], group] == chosen
        inside[n] = np.float32(1) if belongs else np.float32(0)
        found = found or belongs
    return found
