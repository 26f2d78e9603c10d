"""Longest paths, and the work of devices that may divide groups: a linear programme."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.bounds.memory import MemoryNeeds, memory_needs, rows_in_order
from placeto_baselines.devices import device_kinds, op_seconds
from placeto_baselines.errors import BaselineError
from placeto_graphs import PlacementProblem

MOST_AT_ONCE = 1_000_000  # numbers
MOST_SOLVED = 4_096  # groups, as in the finest level of a problem
LARGEST_COST = 1e9  # the solver takes costs from 1e20 on for infinite, and is lost before


@dataclass(frozen=True, eq=False)
class Paths:
    """For each op and the device that it runs on, the longest paths to and from it.

    Times are float64[V, D], hold for every placement that puts the op on that device, and are
    infinite where its group cannot run. They are the same on devices of a kind.
    """

    seconds: NDArray[np.float64]  # of each op
    end: NDArray[np.float64]  # The op ends at this time or later.
    tail: NDArray[np.float64]  # The step ends so many seconds after the op, or later.
    pairs: NDArray[np.intp]  # [P, 2], two devices of each kind of pairs (`device_kinds`)


def longest_paths(problem: PlacementProblem) -> Paths:
    """Return the longest paths to and from each op on each device.

    Proof that ``end`` is a lower bound, by induction in topological order. Op ``v`` on device
    ``d`` starts when each of its inputs is there, and each op that it waits for is done. Take an op
    ``u``, on some device ``s``, that makes an input or is waited for. If ``s = d``, the device is
    busy with ``u`` and with the overhead after it. Then ``v`` starts no earlier than ``end[u, d] +
    overhead[d]`` (no overhead if ``u`` takes no time). If not, a transfer starts no earlier than
    ``u`` ends, and is there ``latency[s, d] + bytes / bandwidth[s, d]`` after its start on any
    link. An op that is only waited for sends nothing. The device ``s`` is ``d`` when both
    ops are in one group, and otherwise no better than the best of all devices. All inputs and ops
    must be there, so the latest counts. The proof for ``tail`` is the same in the reverse order.
    After ``u``, each op that reads it or waits for it still gets its input, runs, and is followed
    by its own tail. Devices of a kind have the same paths, by the same induction.
    """
    graph, cluster, kinds = problem.graph, problem.cluster, device_kinds(problem)
    of_kind = np.unique(kinds.kind_of, return_index=True)[1]  # one device of each kind
    seconds, rest = op_seconds(problem)[:, of_kind], problem.overhead_time[:, of_kind]
    sources, readers = graph.precedences.T
    in_a_group = problem.grouping.group_of[sources] == problem.grouping.group_of[readers]
    sizes = np.append(graph.tensor_bytes[graph.edges[:, 0]], np.zeros(graph.num_waits))
    is_sent = (np.arange(len(sources)) < graph.num_edges)[:, None]
    latency, seconds_per_byte = (
        matrix[tuple(kinds.pairs.T)] for matrix in (cluster.latency, 1 / cluster.bandwidth)
    )
    source_kind, reader_kind = kinds.kind_of[kinds.pairs].T
    elsewhere = kinds.pairs[:, 0] != kinds.pairs[:, 1]
    by_source = np.argsort(source_kind, kind="stable")
    first_of_source = np.searchsorted(source_kind[by_source], np.arange(len(of_kind)))
    first_of_reader = np.searchsorted(reader_kind, np.arange(len(of_kind)))

    def passing(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return float64[R, P], from the end of one op to the start of the other at best."""
        between = np.where(is_sent[rows], latency + sizes[rows, None] * seconds_per_byte, 0.0)
        between[:, ~elsewhere] = rest[sources[rows]]
        return np.where(in_a_group[rows, None] & elsewhere, np.inf, between)

    in_order = rows_in_order(graph, 1 + MOST_AT_ONCE // len(kinds.pairs))
    end = seconds.copy()
    for rows in in_order:
        arrival = end[sources[rows]][:, source_kind] + passing(rows)
        arrival = np.minimum.reduceat(arrival, first_of_reader, axis=1)
        np.maximum.at(end, readers[rows], arrival + seconds[readers[rows]])
    tail = np.where(np.isfinite(seconds), 0.0, np.inf)
    for rows in reversed(in_order):
        remaining = passing(rows) + seconds[readers[rows]][:, reader_kind]
        remaining += tail[readers[rows]][:, reader_kind]
        remaining = np.minimum.reduceat(remaining[:, by_source], first_of_source, axis=1)
        np.maximum.at(tail, sources[rows], remaining)
    seconds, end, tail = (times[:, kinds.kind_of] for times in (seconds, end, tail))
    return Paths(seconds, end, tail, kinds.pairs[elsewhere])


@dataclass(frozen=True, eq=False)
class WorkProgramme:
    """A linear programme below the memory-penalised runtime of every placement.

    A placement puts the part ``x[g, d]``, 0 or 1, of group ``g`` on device ``d``. Let ``T`` be its
    runtime and ``e`` the bytes by which it exceeds the memory. Then these hold:

    - work: ``sum_g work[g, d] x[g, d] - overhead[d] <= T``. A device runs its ops one after the
      other, and is busy for the overhead after each of them that takes time. Only the overhead of
      the last op may come after the end of the step;
    - paths: ``sum_d path[g, d] x[g, d] <= T``, see `longest_paths`;
    - memory: ``sum_h resident[h] x[h, d] + running[g, d] x[g, d] - memory[d] <= e`` for each ``g``
      and ``d``, see `memory_needs`;
    - lack: ``sum_d lack[g, d] x[g, d] <= e``, where ``lack[g, d]`` is the excess of the group alone
      over the memory, and no less than the mean excess of all devices, see `MemoryNeeds`.

    If parts may be fractions, the least ``T + scale e`` is a lower bound. Any multipliers ``>= 0``
    of these inequalities give one, too (weak duality). `bound` uses this: the solver only proposes
    multipliers, so that its precision does not matter.
    """

    work: NDArray[np.float64]  # [G, D] seconds with overheads; infinite where a group cannot run
    path: NDArray[np.float64]  # [G, D], of the longest path through a group; so, too
    overhead: NDArray[np.float64]  # [D] seconds of one
    memory_needs: MemoryNeeds
    scale: float  # seconds that a byte too many costs

    def solve(self) -> float:
        """Return the best bound that the solver's multipliers give.

        For more groups than `MOST_SOLVED` they are those of as many sets of similar groups, because
        the time of the solver grows faster than the square of the groups.
        """
        is_small = len(self.work) <= MOST_SOLVED
        return self.bound(
            *(self.solver_multipliers() if is_small else self.multipliers_of_sets(MOST_SOLVED))
        )

    def multipliers_of_sets(self, count: int) -> tuple[NDArray[np.float64], ...]:
        """Return the multipliers of a programme of about ``count`` sets of groups, for `bound`.

        A set has groups that run on the same devices, with similar speeds. Its multiplier of paths
        is that of its group with the longest, that of memory that of the group that needs most. The
        group that lacks most has all multipliers of lack.
        """
        runs = np.isfinite(self.work)
        _, where = np.unique(runs, axis=0, return_inverse=True)
        seconds = np.where(runs, self.work, 0.0)
        share = seconds[:, 0] / np.maximum(seconds.sum(axis=1), np.finfo(np.float64).tiny)
        order = np.lexsort((share, where))
        place = np.empty_like(order)
        place[order] = np.arange(len(order)) * count // len(order)
        _, set_of = np.unique(np.stack([where, place], axis=1), axis=0, return_inverse=True)
        of_work, set_path, set_memory, set_lack = self.of_sets(set_of).solver_multipliers()
        of_path, of_lack = np.zeros(len(order)), np.zeros(len(order))
        of_memory = np.zeros(self.work.shape)
        of_path[_greatest(self.path.min(axis=1), set_of)] = set_path
        of_memory[_greatest(self.memory_needs.running.max(axis=1), set_of)] = set_memory
        of_lack[self.memory_needs.lack.min(axis=1).argmax()] = set_lack.sum()
        return of_work, of_path, of_memory, of_lack

    def of_sets(self, set_of: NDArray[np.integer]) -> "WorkProgramme":
        """Return the programme in which the groups of each set are one group."""
        shape = (int(set_of.max()) + 1, self.work.shape[1])
        work, path, running = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
        resident = np.zeros(shape[0], np.int64)
        # Sums of infinities are infinite, and so is the work of a set that cannot run.
        np.add.at(work, set_of, self.work)
        np.maximum.at(path, set_of, self.path)
        np.maximum.at(running, set_of, self.memory_needs.running)
        np.add.at(resident, set_of, self.memory_needs.resident)
        memory_needs = replace(self.memory_needs, resident=resident, running=running)
        return replace(self, work=work, path=path, memory_needs=memory_needs)

    def bound(
        self,
        of_work: NDArray[np.float64],
        of_path: NDArray[np.float64],
        of_memory: NDArray[np.float64],
        of_lack: NDArray[np.float64],
    ) -> float:
        """Return the lower bound that multipliers of the inequalities give.

        Add up the inequalities, each times its multiplier, and take of every group the part on the
        device where it adds least. ``T`` and ``e`` drop out if the multipliers of work and paths
        sum to at most 1, and those of memory and lack to at most ``scale``. Larger ones are scaled
        down, and those below 0 count as 0. They are float64 [D], [G], [G, D] and [G].
        """
        of_work, of_path, of_memory, of_lack = (
            np.maximum(multipliers, 0.0) for multipliers in (of_work, of_path, of_memory, of_lack)
        )
        shrink = max(1.0, float(of_work.sum() + of_path.sum()))
        of_work, of_path = of_work / shrink, of_path / shrink
        bytes_weigh = float(of_memory.sum() + of_lack.sum())
        if bytes_weigh > self.scale:
            of_memory = of_memory * (self.scale / bytes_weigh)
            of_lack = of_lack * (self.scale / bytes_weigh)
        of_device = of_memory.sum(axis=0)
        memory_needs = self.memory_needs
        runs = np.isfinite(self.work)
        adds = np.where(
            runs,
            of_work * np.where(runs, self.work, 0.0)
            + of_path[:, None] * np.where(runs, self.path, 0.0)
            + of_device * memory_needs.resident[:, None]
            + of_memory * memory_needs.running
            + of_lack[:, None] * memory_needs.lack,
            np.inf,
        )
        return float(
            adds.min(axis=1).sum() - of_work @ self.overhead - of_device @ memory_needs.memory
        )

    def solver_multipliers(self) -> tuple[NDArray[np.float64], ...]:
        """Return the multipliers of the optimum, as `bound` takes them.

        Inside, seconds are in units of the longest path or overhead, and bytes in units of the
        largest memory: the solver's tolerances are absolute. Where such a second is nothing beside
        what too many bytes cost, it is longer.
        """
        from scipy import optimize, sparse  # noqa: PLC0415 (they take half a second to import)

        groups, devices = np.nonzero(np.isfinite(self.work))
        num_groups, num_devices = self.work.shape
        memory_needs = self.memory_needs
        columns, ones = np.arange(len(groups)), np.ones((len(groups), 1))
        of_group = sparse.csr_array((ones[:, 0], (groups, columns)))
        of_device = sparse.csr_array(
            (ones[:, 0], (devices, columns)), shape=(num_devices, len(columns))
        )
        byte = float(memory_needs.memory.max())
        shortest = self.scale * byte / LARGEST_COST
        longest = float(max(self.path[groups, devices].max(), self.overhead.max()))
        second = max(longest, shortest) or 1.0
        # The columns are the parts, T, e, and the resident bytes of each device.
        work = of_device * (self.work[groups, devices] / second)
        path = of_group * (self.path[groups, devices] / second)
        resident = of_device * (memory_needs.resident[groups] / byte)
        running = sparse.diags_array(memory_needs.running[groups, devices] / byte)
        lack = of_group * (memory_needs.lack[groups, devices] / byte)
        each_group, each_device = -ones[:num_groups], -np.ones((num_devices, 1))
        matrix = sparse.block_array(
            [
                [work, each_device, None, None],
                [path, each_group, None, None],
                [resident, None, None, -sparse.eye_array(num_devices)],
                [running, None, -ones, of_device.T],
                [lack, None, each_group, None],
            ],
            format="csr",
        )
        limits = [
            self.overhead / second,
            np.zeros(num_groups),
            np.zeros(num_devices),
            memory_needs.memory[devices] / byte,
            np.zeros(num_groups),
        ]
        costs = np.zeros(matrix.shape[1])
        costs[len(columns)], costs[len(columns) + 1] = 1.0, self.scale * byte / second
        unused = sparse.csr_array((num_groups, num_devices + 2))
        solution = optimize.linprog(
            costs,
            A_ub=matrix,
            b_ub=np.concatenate(limits),
            A_eq=sparse.hstack([of_group, unused]),
            b_eq=np.ones(num_groups),
            method="highs",
        )
        if solution.status != 0:
            raise BaselineError(f"lower bound: expected an optimum, got {solution.message}")
        ends = np.cumsum([len(limit) for limit in limits])
        of_work, of_path, _, of_part, of_lack, _ = np.split(-solution.ineqlin.marginals, ends)
        of_memory = np.zeros((num_groups, num_devices))
        of_memory[groups, devices] = of_part * second / byte
        return of_work, of_path, of_memory, of_lack * second / byte


def _greatest(values: NDArray[Any], set_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the greatest value of each set."""
    order = np.lexsort((values, set_of))
    last: NDArray[np.int64] = np.append(np.flatnonzero(np.diff(set_of[order])), len(order) - 1)
    return order[last]


def work_programme(problem: PlacementProblem, paths: Paths, scale: float) -> WorkProgramme:
    """Return the linear programme of a problem."""
    overhead = np.array([device.op_overhead for device in problem.cluster.devices])
    group_of = problem.grouping.group_of
    work, path = np.zeros((2, problem.num_groups, problem.num_devices))
    # Sums of infinities are infinite, and so is the work of a group that cannot run.
    np.add.at(work, group_of, problem.busy_time)
    # The ops of a group share its device, so the longest of the paths through any of them counts.
    np.maximum.at(path, group_of, paths.end + paths.tail)
    return WorkProgramme(work, path, overhead, memory_needs(problem), scale)
