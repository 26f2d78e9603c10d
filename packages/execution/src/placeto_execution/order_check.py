"""Whether an order that was given can be kept."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import pairwise

from placeto_execution.errors import ExecutionError
from placeto_execution.plan import Plan
from placeto_graphs import PlacementProblem, StepOrder


def check_order(problem: PlacementProblem, plan: Plan, order: StepOrder) -> None:
    """Check that an order has every op and transfer in its place, and waits for nothing forever.

    Raises
    ------
    ExecutionError
        When it does not.
    """
    devices: list[set[Hashable]] = [set() for _ in range(problem.num_devices)]
    for op, device in enumerate(plan.op_device):
        devices[device].add(op)
    links: list[set[Hashable]] = [set() for _ in range(problem.cluster.num_links)]
    producer = problem.graph.tensor_producer
    for tensor, destination in plan.transfers:
        source = plan.op_device[producer[tensor]]
        links[int(problem.cluster.link[source, destination])].add((tensor, destination))
    _check_members("ops", order.ops, devices)
    _check_members("transfers", order.transfers, links)
    _check_no_circle(plan, order)


def _check_members(
    what: str, given: Sequence[Sequence[Hashable]], wanted: Sequence[set[Hashable]]
) -> None:
    if len(given) != len(wanted):
        raise ExecutionError(f"order.{what}: expected {len(wanted)} sequences, got {len(given)}")
    for number, (members, expected) in enumerate(zip(given, wanted, strict=True)):
        if len(members) != len(expected) or set(members) != expected:
            raise ExecutionError(
                f"order.{what}[{number}]: expected each of the {len(expected)} of this placement "
                f"once, got {len(members)}, {len(expected & set(members))} of which are of it"
            )


def _check_no_circle(plan: Plan, order: StepOrder) -> None:
    """Follow the order and the graph together until nothing is left (Kahn's algorithm)."""
    leads_to: defaultdict[Hashable, list[Hashable]] = defaultdict(list)
    num_before: defaultdict[Hashable, int] = defaultdict(int)

    def follows(before: Hashable, after: Hashable) -> None:
        leads_to[before].append(after)
        num_before[after] += 1

    for sequence in (*order.ops, *order.transfers):
        for before, after in pairwise(sequence):
            follows(before, after)
    producer = {tensor: op for op, tensors in enumerate(plan.outputs) for tensor in tensors}
    for (tensor, device), readers in plan.readers.items():
        source: Hashable = producer[tensor]
        if device != plan.op_device[producer[tensor]]:
            follows(source, (tensor, device))
            source = tensor, device
        for reader in readers:
            follows(source, reader)
    for before, waiters in enumerate(plan.waiters):
        for op in waiters:
            follows(before, op)
    everything = [*range(len(plan.op_device)), *plan.transfers]
    free = [member for member in everything if not num_before[member]]
    num_done = 0
    while free:
        num_done += 1
        for member in leads_to[free.pop()]:
            num_before[member] -= 1
            if not num_before[member]:
                free.append(member)
    if num_done < len(everything):
        raise ExecutionError(
            "order: expected one that runs each op after its inputs, "
            f"got one in which {len(everything) - num_done} ops and transfers wait forever"
        )
