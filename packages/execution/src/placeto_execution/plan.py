"""What follows from what, once it is known where each op runs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto_graphs import OpGraph

HERE = -1


@dataclass(frozen=True)
class Plan:
    """A placed step: what the end of an op, or the arrival of a tensor, leads to.

    Attributes
    ----------
    op_device : V of int
        Where each op runs.
    num_inputs : V of int
        How many tensors and other ops each op waits for.
    waiters : V lists of int
        The ops that wait for each op.
    inputs, outputs : V lists of int
        The tensors that each op reads and makes.
    handed_over : T lists of (int, int)
        To whom each tensor goes when it is made, in order: (`HERE`, op) to an op on the same
        device, else (destination, `HERE`).
    readers : dict of (int, int) to list of int
        The ops that read a tensor on a device, in the order of the edges.
    uses : dict of (int, int) to int
        How many reads and outgoing transfers a tensor on a device has to outlive; one more for a
        tensor that stays until the end.
    transfers : list of (int, int)
        The (tensor, destination) of all that is sent.
    """

    op_device: Sequence[int]
    num_inputs: Sequence[int]
    waiters: Sequence[Sequence[int]]
    inputs: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    handed_over: Sequence[Sequence[tuple[int, int]]]
    readers: dict[tuple[int, int], list[int]]
    uses: dict[tuple[int, int], int]
    transfers: Sequence[tuple[int, int]]


def plan_of(graph: OpGraph, op_device: Sequence[int]) -> Plan:
    """Return what follows from what on the devices of the ops."""
    handed_over: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_tensors)]
    readers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    uses: defaultdict[tuple[int, int], int] = defaultdict(int)
    inputs: list[list[int]] = [[] for _ in range(graph.num_ops)]
    transfers = []
    producer = graph.tensor_producer.tolist()
    for tensor, op in graph.edges.tolist():
        home, device = op_device[producer[tensor]], op_device[op]
        inputs[op].append(tensor)
        if device == home:
            handed_over[tensor].append((HERE, op))
        elif (tensor, device) not in readers:
            handed_over[tensor].append((device, HERE))
            transfers.append((tensor, device))
            uses[tensor, home] += 1
        readers[tensor, device].append(op)
        uses[tensor, device] += 1
    num_waits = np.bincount(graph.waits[:, 0], minlength=graph.num_ops).tolist()
    for tensor in graph.held_tensors.tolist():
        uses[tensor, op_device[producer[tensor]]] += 1
    return Plan(
        op_device=op_device,
        num_inputs=[len(read) + count for read, count in zip(inputs, num_waits, strict=True)],
        waiters=[waiters.tolist() for waiters in graph.waiters_of_op],
        inputs=inputs,
        outputs=[graph.tensors_of_op[op].tolist() for op in range(graph.num_ops)],
        handed_over=handed_over,
        readers=dict(readers),
        uses=dict(uses),
        transfers=transfers,
    )
