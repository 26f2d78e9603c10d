"""The placers of Baechi (Jeon et al. 2020): list scheduling and filling, within the memory."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import NOWHERE, accelerated, allowed_devices
from placeto_baselines.errors import BaselineError
from placeto_baselines.placement_trials import RulePlacer
from placeto_baselines.scheduling.list_schedulers import ListScheduler
from placeto_baselines.scheduling.timetable import TaskGraph, Timetable
from placeto_graphs import PlacementProblem

THRESHOLD = 0.5  # at most one child of a task, and one parent, is below it


class MEtf(ListScheduler):
    """m-ETF of Baechi (Jeon et al. 2020): earliest task first, where memory allows.

    Of all pairs of an op whose inputs are scheduled and a device with enough memory, the one that
    can start earliest is scheduled (ETF, Hwang et al. 1989). Of several pairs, it takes the op with
    the longest path of work to an exit, then the device where it finishes first. A group stays
    where its first op went. A device without memory for the whole group is not eligible for that
    op. A group that fits on no device goes to the one with the most memory to spare, and the
    placement may not fit. If there are accelerators, a CPU gets only groups that no accelerator can
    run, and its times count for these only.

    Examples
    --------
    >>> MEtf().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "m-etf"

    def schedule(self, problem: PlacementProblem) -> Timetable:
        tasks = TaskGraph(problem, accelerated(problem))
        return with_favourites(problem, tasks, [NOWHERE] * tasks.num_tasks)


class MSct(ListScheduler):
    """m-SCT of Baechi (Jeon et al. 2020, section 3): keep each op with its favourite child.

    A linear programme finds the favourite child of each op, with which it should share its device
    (`favourite_children`). The device waits for that child, and meanwhile runs urgent ops only. It
    waits as long as the child can become ready before its input could be on any other device (Hanen
    and Munier 1995). If no transfer takes longer than an op, as the small communication times of
    SCT assume, these are the children whose other parents already run. All else is as in m-ETF, see
    `MEtf`.

    Examples
    --------
    >>> MSct().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "m-sct"

    def schedule(self, problem: PlacementProblem) -> Timetable:
        tasks = TaskGraph(problem, accelerated(problem))
        return with_favourites(problem, tasks, favourite_children(tasks))


class MTopo(RulePlacer):
    """m-TOPO of Baechi (Jeon et al. 2020): fill one device after the other.

    Ops are taken in topological order, and each brings its group with it. A device is filled up to
    the mean memory per device plus that of the largest group, or to its own memory if that is less.
    Then comes the next device. Groups that are left over go to the device with the most memory to
    spare. If there are accelerators, only these are filled. A group that cannot run on its device
    goes to its fastest one, and takes memory there.

    Examples
    --------
    >>> MTopo().place(problem, evaluator).placement
    array([1, 1, 1, 2], dtype=int32)
    """

    name = "m-topo"

    def placements(self, problem: PlacementProblem) -> NDArray[np.int32]:
        memory = problem.cluster.memory_bytes
        permanent, temporary = demand(problem)
        need = permanent + temporary
        devices = problem.cluster.accelerators
        even = int(need.sum()) // len(devices) + int(need.max())
        limit = np.minimum(memory, even)
        used = np.zeros(problem.num_devices, np.int64)
        runs = allowed_devices(problem)
        fastest = problem.group_graph.compute_time.argmin(axis=1)
        placement = np.zeros(problem.num_groups, np.int32)
        turn = 0
        tasks = TaskGraph(problem, accelerated(problem))
        # By their first ops; groups of data alone come last.
        in_order = tasks.group_of[tasks.order].tolist()
        for group in dict.fromkeys([*in_order, *range(problem.num_groups)]):
            while turn < len(devices) and used[devices[turn]] + need[group] > limit[devices[turn]]:
                turn += 1
            spare = (memory - used)[devices]
            device = devices[turn if turn < len(devices) else int(spare.argmax())]
            placement[group] = device if runs[group, device] else fastest[group]
            used[placement[group]] += need[group]
        return placement[None]


def demand(problem: PlacementProblem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the permanent and the temporary bytes of each group, twice int64[G].

    Permanent are weights and optimizer state, and what the forward pass keeps for the backward
    pass: the outputs that ops of another phase read, and those that are held until the step ends.
    Temporary is the most that an op of the group takes besides: its other outputs and its
    workspace. Outputs that live in parameters are not counted twice.
    """
    graph, group_of = problem.graph, problem.grouping.group_of
    size = graph.tensor_bytes * ~graph.lives_in_weights
    is_kept = np.zeros(graph.num_tensors, np.bool_)
    later = graph.phases[graph.edge_producers] != graph.phases[graph.edge_consumers]
    is_kept[graph.edges[later, 0]] = True
    is_kept[graph.held_tensors] = True
    permanent = problem.group_graph.parameter_bytes.copy()
    np.add.at(permanent, group_of[graph.tensor_producer[is_kept]], size[is_kept])
    of_op = graph.workspace_bytes.copy()
    np.add.at(of_op, graph.tensor_producer[~is_kept], size[~is_kept])
    temporary = np.zeros(problem.num_groups, np.int64)
    np.maximum.at(temporary, group_of, of_op)
    return permanent, temporary


class Frontier(Timetable):
    """A schedule that grows from the tasks that are ready; groups go where their memory fits."""

    def __init__(self, problem: PlacementProblem, tasks: TaskGraph) -> None:
        super().__init__(tasks)
        self.now = 0.0  # no task starts before one that was scheduled earlier
        self.scheduled = tasks.is_data.copy()
        # Of ready tasks: when all their inputs can be on each device.
        self.arrivals = np.zeros((tasks.num_tasks, tasks.num_devices))
        self._ops_left = np.bincount(tasks.group_of[tasks.order], minlength=tasks.num_groups)
        permanent, self._temporary = demand(problem)
        self._total = permanent + self._temporary
        self._free_bytes = problem.cluster.memory_bytes
        self._possible = tasks.candidates.copy()  # one device once a group has been placed
        for task in self.ready:
            self.arrivals[task] = self.arrival(task)

    def starts(self, tasks: int | NDArray[np.integer]) -> NDArray[np.float64]:
        """Return float64[..., D], when ready tasks could start on each device."""
        starts: NDArray[np.float64] = np.maximum(
            self.arrivals[tasks], np.maximum(self.free, self.now)
        )
        return starts

    def add(self, task: int, device: int, start: float) -> list[int]:
        settled = super().add(task, device, start)
        self.now = start
        self.scheduled[task] = True
        for reader in self.newly_ready:
            self.arrivals[reader] = self.arrival(reader)
        for settled_group in settled:
            self._free_bytes[self.placement[settled_group]] -= self._total[settled_group]
            self._possible[settled_group] = (
                np.arange(self.tasks.num_devices) == self.placement[settled_group]
            )
        group = self.tasks.group_of[task]
        self._ops_left[group] -= 1
        if not self._ops_left[group]:
            self._free_bytes[self.placement[group]] += self._temporary[group]
        if settled or not self._ops_left[group]:
            self._bring_data()
        return settled

    def candidates(self, groups: int | NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return bool[..., D], the devices that groups may go to, as things stand.

        Where no candidate has the memory, the one with the most to spare has to take a group.
        """
        possible = self._possible[groups]
        fits = possible & (self._total[groups, None] <= self._free_bytes)
        spare = np.where(possible, self._free_bytes, np.iinfo(np.int64).min)
        most = np.arange(self.tasks.num_devices) == spare.argmax(axis=-1)[..., None]
        candidates: NDArray[np.bool_] = np.where(fits.any(axis=-1, keepdims=True), fits, most)
        return candidates

    def _bring_data(self) -> None:
        """Find when data can be where the ready tasks may go, which the candidates decide."""
        for task in self.ready:
            if self.tasks.data[task]:
                self.arrivals[task] = self.arrival(task)


def with_favourites(problem: PlacementProblem, tasks: TaskGraph, favourite: list[int]) -> Timetable:
    """Return the schedule of SCT (Hanen and Munier 1995; Jeon et al. 2020, section 3).

    It grows by the pair of a ready task and a device that can start earliest. Of several pairs the
    task with the longest path of work to an exit counts, then the device where it finishes first.

    A device that has run ``i`` is *awake* from then until what ``i`` sends to its favourite child
    ``j`` could be anywhere. As long as ``j`` can still become ready here within that time, the
    device only takes ``j`` and *urgent* tasks, and these first. A task is urgent if its inputs
    could by then be on any device that it may go to.
    """
    level = tasks.upward_rank(with_transfers=False)
    frontier = Frontier(problem, tasks)
    awake: dict[int, tuple[int, float]] = {}  # by device: the child, and until when

    while frontier.ready:
        ready = np.array([*frontier.ready])
        eligible = frontier.candidates(tasks.group_of[ready])
        start = frontier.starts(ready)
        urgent = np.where(eligible, frontier.arrivals[ready], 0.0).max(axis=1)
        for device, (child, until) in list(awake.items()):
            if _first_start(frontier, child, device) > until:
                del awake[device]
                continue
            is_other = ready != child
            earliest = np.minimum(urgent[is_other], until)
            start[is_other, device] = np.maximum(start[is_other, device], earliest)
        start[~eligible] = np.inf
        rows, devices = np.nonzero(start == start.min())
        children = np.full(tasks.num_devices, NOWHERE)  # of the devices that are awake
        children[list(awake)] = [child for child, _ in awake.values()]
        tied = ready[rows]
        preference = (  # the last one counts most
            devices,
            tied,
            tasks.seconds[tied, devices],
            children[devices] != NOWHERE,
            -level[tied],
            children[devices] == tied,
        )
        first = np.lexsort(preference)[0]
        task, device = int(tied[first]), int(devices[first])
        frontier.add(task, device, float(start.min()))
        awake.pop(device, None)
        child = favourite[task]
        if child != NOWHERE:
            (size,) = (size for source, size in tasks.predecessors[child] if source == task)
            slowest = float(tasks.transfers(size, device).max())
            awake[device] = child, float(frontier.finish[task]) + slowest
    return frontier.completed()


def _first_start(frontier: Frontier, task: int, device: int) -> float:
    """Return a time before which a task cannot start on a device; infinity for never."""
    tasks = frontier.tasks
    if frontier.scheduled[task] or not frontier.candidates(tasks.group_of[task])[device]:
        return np.inf
    if not frontier.missing[task]:
        return float(frontier.arrivals[task, device])
    return max(
        _first_sent(frontier, source, size, device) for source, size in tasks.predecessors[task]
    )


def _first_sent(frontier: Frontier, task: int, size: int | None, device: int) -> float:
    """Return a time before which so many bytes of a task cannot be on a device."""
    seconds = frontier.tasks.seconds[task]
    if frontier.scheduled[task]:
        return float(frontier.sent(task, size)[device])
    if frontier.missing[task]:
        return frontier.now + float(seconds.min())
    finish = (frontier.starts(task) + seconds)[frontier.devices(task)]
    return float(finish.min())


def favourite_children(tasks: TaskGraph) -> list[int]:
    """Return the favourite child of each task, or -1.

    With as many devices as are wanted, ``x[i, j]`` is 0 if task ``j`` runs on the device of task
    ``i`` right after it, and 1 if its input has to be sent there. The programme minimises the
    makespan ``w`` over ``x`` from 0 to 1 and start times ``s >= 0``::

        s[i] + seconds[i] + communication[i, j] x[i, j] <= s[j]     for each edge
        s[i] + seconds[i] <= w                                      for each task
        sum over children j of x[i, j] >= number of children - 1    for each task
        sum over parents i of x[i, j]  >= number of parents - 1     for each task

    and ``j`` is the favourite child of ``i`` where ``x[i, j] < 1/2`` (Hanen and Munier 1995; Jeon
    et al. 2020). The last two make it one at most. Times are means over devices.
    """
    from scipy import optimize, sparse  # noqa: PLC0415 (they take half a second to import)

    edges = [
        (task, reader, sent)
        for task, readers in enumerate(tasks.successors)
        for reader, sent in readers
    ]
    favourite = [NOWHERE] * tasks.num_tasks
    if not any(sent for _, _, sent in edges):
        return favourite
    parents, children = np.array([edge[:2] for edge in edges]).T
    communication = np.array([edge[2] for edge in edges])
    unit = max(float(tasks.mean_seconds.max()), float(communication.max()))
    seconds = tasks.mean_seconds / unit
    num_tasks, num_edges = len(seconds), len(edges)
    ones, edge_indices = np.ones(num_edges), np.arange(num_edges)
    of_parent = sparse.csr_array((ones, (parents, edge_indices)), shape=(num_tasks, num_edges))
    of_child = sparse.csr_array((ones, (children, edge_indices)), shape=(num_tasks, num_edges))
    matrix = sparse.block_array(
        [
            [sparse.diags_array(communication / unit), (of_parent - of_child).T, None],
            [None, sparse.eye_array(num_tasks), -np.ones((num_tasks, 1))],
            [-of_parent, None, None],
            [-of_child, None, None],
        ],
        format="csr",
    )
    limits = [
        -seconds[parents],
        -seconds,
        1 - np.bincount(parents, minlength=num_tasks),
        1 - np.bincount(children, minlength=num_tasks),
    ]
    costs = np.zeros(matrix.shape[1])
    costs[-1] = 1.0
    bounds = [(0, 1)] * num_edges + [(0, None)] * (num_tasks + 1)
    solution = optimize.linprog(
        costs, A_ub=matrix, b_ub=np.concatenate(limits), bounds=bounds, method="highs"
    )
    if solution.status != 0:
        raise BaselineError(f"favourite children: expected an optimum, got {solution.message}")
    near = (communication > 0) & (solution.x[:num_edges] < THRESHOLD - 1e-6)
    for edge in np.flatnonzero(near).tolist():
        favourite[int(parents[edge])] = int(children[edge])
    return favourite
