"""List schedulers as placers: the order of ops first, then a device for each group."""

import heapq

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import accelerated, allowed_devices
from placeto_baselines.scheduling.earliest_first import EarliestFirst, demand
from placeto_baselines.scheduling.favourite_children import NOBODY, favourite_children
from placeto_baselines.scheduling.schedule import Schedule, Timetable
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_baselines.trials import RulePlacer
from placeto_graphs import PlacementProblem


class ListScheduler(RulePlacer):
    """Base of the placers that make a schedule of ops and keep where it puts groups."""

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule of the ops of a problem."""
        raise NotImplementedError

    def placements(self, problem: PlacementProblem) -> NDArray[np.int32]:
        """Return int32[1, G], where the schedule puts groups."""
        return self.schedule(problem).placement[None]


class Heft(ListScheduler):
    """HEFT (Topcuoglu, Hariri, Wu 2002): by upward rank, to the device that finishes first.

    Ops are taken in the order of falling upward rank (`TaskGraph.upward_rank`). Each goes to the
    device where it finishes earliest, and may be inserted between two ops that are already there. A
    group stays where its first op went. All devices may be used, CPUs too. The means of the rank
    are therefore over all devices that can run an op, and all pairs of them, as in the paper.

    Examples
    --------
    >>> Heft().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "heft"

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule that HEFT makes."""
        tasks = TaskGraph(problem, allowed_devices(problem))
        timetable = Timetable(tasks)
        order = np.array(tasks.order, np.int64)
        # Ops without costs may rank as high as what waits for them: ties in topological order.
        falling = np.argsort(-tasks.upward_rank()[order], kind="stable")
        for task in order[falling].tolist():
            arrival = timetable.arrival(task).tolist()
            seconds = tasks.seconds[task].tolist()
            starts = {
                device: timetable.first_gap(device, arrival[device], seconds[device])
                for device in timetable.devices(task).tolist()
            }
            device = min(starts, key=lambda device: (starts[device] + seconds[device], device))
            timetable.add(task, device, starts[device])
        return timetable.schedule()


class CriticalPathPlacer(ListScheduler):
    """Longest path first, to the device where it can start earliest (Kwok and Ahmad 1999).

    DOPPLER imitates this heuristic before it learns. Of the ops whose inputs are scheduled, it
    takes the one with the longest path to an exit, by mean computation and communication. The op
    goes to the device where it can start earliest, and of several to the one where it finishes
    first. A group stays where its first op went. If there are accelerators, a CPU gets only groups
    that no accelerator can run, and its times count for these only.

    Examples
    --------
    >>> CriticalPathPlacer().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "critical-path"

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule that the heuristic makes."""
        tasks = TaskGraph(problem, accelerated(problem))
        timetable = Timetable(tasks)
        rank = tasks.upward_rank().tolist()
        missing = [len(sources) for sources in tasks.predecessors]
        ready = [(-rank[task], task) for task in tasks.order if not missing[task]]
        heapq.heapify(ready)
        while ready:
            _, task = heapq.heappop(ready)
            devices = timetable.devices(task)
            start = np.maximum(timetable.arrival(task), timetable.free)[devices]
            finish = start + tasks.seconds[task, devices]
            first = int(np.lexsort((finish, start))[0])
            timetable.add(task, int(devices[first]), float(start[first]))
            for reader, _ in tasks.successors[task]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, (-rank[reader], reader))
        return timetable.schedule()


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

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule that the rule makes."""
        tasks = TaskGraph(problem, accelerated(problem))
        return EarliestFirst(problem, tasks, [NOBODY] * tasks.num_tasks).run()


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

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule that the rule makes."""
        tasks = TaskGraph(problem, accelerated(problem))
        return EarliestFirst(problem, tasks, favourite_children(tasks)).run()


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
        """Return int32[1, G], the placement that fills the devices."""
        memory = problem.cluster.memory_bytes
        need = demand(problem).total
        devices = problem.cluster.accelerators
        even = int(need.sum()) // len(devices) + int(need.max())
        limit = np.minimum(memory, even)
        used = np.zeros(problem.num_devices, np.int64)
        runs = allowed_devices(problem)
        fastest = problem.group_graph.compute_time.argmin(axis=1)
        placement = np.zeros(problem.num_groups, np.int32)
        turn = 0
        for group in _in_order_of_first_ops(problem):
            while turn < len(devices) and used[devices[turn]] + need[group] > limit[devices[turn]]:
                turn += 1
            spare = (memory - used)[devices]
            device = devices[turn if turn < len(devices) else int(spare.argmax())]
            placement[group] = device if runs[group, device] else fastest[group]
            used[placement[group]] += need[group]
        return placement[None]


def _in_order_of_first_ops(problem: PlacementProblem) -> list[int]:
    """Return the groups in the topological order of their first ops, those of data alone last."""
    tasks = TaskGraph(problem, accelerated(problem))
    in_order = tasks.group_of[tasks.order].tolist()
    return list(dict.fromkeys([*in_order, *range(problem.num_groups)]))
