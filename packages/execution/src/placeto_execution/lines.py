"""How tensors get from one worker to another."""

from collections.abc import Callable, Sequence

from placeto_execution.clock import Clock
from placeto_execution.inbox import Inbox
from placeto_execution.links import EmulatedLink, Transfer
from placeto_execution.plan import Plan
from placeto_execution.queues import Queue
from placeto_graphs import PlacementProblem, StepRun


class DirectLines:
    """Hands tensors over as they are, or copies them at once where memory is not shared.

    Parameters
    ----------
    problem, plan, step_run
        What runs.
    clock
        Says how long copies take.
    inboxes
        Those of all workers.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        plan: Plan,
        step_run: StepRun,
        clock: Clock,
        inboxes: Sequence[Inbox],
    ) -> None:
        self._producer: list[int] = problem.graph.tensor_producer.tolist()
        self._link: list[list[int]] = problem.cluster.link.tolist()
        self._plan = plan
        self._step_run = step_run
        self._clock = clock
        self._inboxes = inboxes

    def carry(self, tensor: int, destination: int, time: float) -> None:
        """Send a tensor that was made at a time."""
        source = self._plan.op_device[self._producer[tensor]]
        parcel = self._step_run.send(tensor, destination)
        link = self._link[source][destination]
        transfer = Transfer(tensor, source, destination, link, 0.0, 0.0, parcel, time)
        transfer.end = self._clock.now()
        self._inboxes[source].put(transfer)
        self._inboxes[destination].put(transfer)


class EmulatedLines:
    """Lets tensors arrive when the links of the cluster would have carried them.

    Parameters
    ----------
    problem, plan, step_run, inboxes
        As for `DirectLines`.
    new_queue
        Makes the queue of a link of some number.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        plan: Plan,
        step_run: StepRun,
        inboxes: Sequence[Inbox],
        new_queue: Callable[[int], Queue[Transfer]],
    ) -> None:
        graph, cluster = problem.graph, problem.cluster
        self._producer: list[int] = graph.tensor_producer.tolist()
        self._num_bytes: list[int] = graph.tensor_bytes.tolist()
        self._number: list[list[int]] = cluster.link.tolist()
        self._latency: list[list[float]] = cluster.latency.tolist()
        self._bandwidth: list[list[float]] = cluster.bandwidth.tolist()
        self._overhead = [device.transfer_overhead for device in cluster.devices]
        self._links = [EmulatedLink(new_queue(number)) for number in range(cluster.num_links)]
        self._plan = plan
        self._step_run = step_run
        self._inboxes = inboxes

    def carry(self, tensor: int, destination: int, time: float) -> None:
        """Send a tensor that was made at a time."""
        source = self._plan.op_device[self._producer[tensor]]
        number = self._number[source][destination]
        on_the_way = self._num_bytes[tensor] / self._bandwidth[source][destination]
        seconds = self._latency[source][destination] + on_the_way
        parcel = self._step_run.send(tensor, destination)
        transfer = Transfer(
            tensor, source, destination, number, seconds, self._overhead[source], parcel
        )
        for settled in self._links[number].offer(transfer, time):
            self._inboxes[settled.source].put(settled)
            self._inboxes[settled.destination].put(settled)
