"""Fork-join regions and energetic reasoning: ops that must run in an interval have to fit into it.

`fork_join_bound` joins the parts: `relax_ops` leaves out on which devices ops run. `region_lags`
returns the least time between two ops on any number of devices, with the transfers that more
devices need. `heads` and `window_bound` are energetic reasoning over a whole step.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.bounds.work import Paths
from placeto_graphs import PlacementProblem, called_by_compiled, compiled

BAND = 200  # how far apart, in the order of ops, the two ends of a region may be
LARGEST_REGION = 60  # ops in a region: larger ones brought nothing on any problem
LEVELS = 16  # thresholds by which the ops of a region are left out
MAX_WINDOW_ENDS = 400


class RelaxedOps(NamedTuple):
    """The ops of a problem in an order of execution, with the least costs over all devices.

    Ops are in the order of their earliest ends, so that ops that run at about the same time are
    close to each other. Producers come before their consumers. An op that is only waited for is a
    producer of an input that takes no time to another device.
    """

    seconds: NDArray[np.float64]  # [V]
    rest: NDArray[np.float64]  # [V], of the overhead that follows each op
    share: NDArray[np.float64]  # [V], of the capacity 1 per second of all devices together
    group: NDArray[np.int64]  # [V]; the ops of a group share a device
    offsets: NDArray[np.int64]  # [V + 1], start of the producers of each op
    producers: NDArray[np.int64]  # [E + W], of each op's inputs, and what it waits for
    transfer: NDArray[np.float64]  # [E + W] seconds from another device; infinite without one
    speed: NDArray[np.float64]  # [D], the capacity of each device, falling, of sum 1
    overhead: float  # the longest of all devices

    def reversed(self) -> "RelaxedOps":
        """Return the same ops backwards in time: consumers are producers."""
        last = len(self.seconds) - 1
        consumers = np.repeat(np.arange(last + 1), np.diff(self.offsets))
        order = np.argsort(-self.producers, kind="stable")
        return self._replace(
            seconds=self.seconds[::-1].copy(),
            rest=self.rest[::-1].copy(),
            share=self.share[::-1].copy(),
            group=self.group[::-1].copy(),
            offsets=np.searchsorted(last - self.producers[order], np.arange(last + 2)),
            producers=last - consumers[order],
            transfer=self.transfer[order],
        )


def fork_join_bound(problem: PlacementProblem, paths: Paths) -> float:
    """Return a lower bound from regions between ops and from windows of time.

    Only the number and the speeds of the devices count. The bound therefore holds for any links,
    and for any order in which a device runs its ops. It needs no solver.
    """
    ops = relax_ops(problem, paths)
    lags = region_lags(ops, min(BAND, problem.graph.num_ops), LARGEST_REGION, LEVELS)
    head = heads(ops, lags, problem.num_groups)
    tail = heads(ops.reversed(), lags.reversed(), problem.num_groups)[::-1].copy()
    # Some of the tails, evenly over all ops.
    quantiles = np.linspace(0, 1, min(len(tail), MAX_WINDOW_ENDS))
    ends = np.unique(np.quantile(tail, quantiles, method="lower"))
    return window_bound(ops, head, tail, np.argsort(-head), ends, np.empty(problem.num_groups))


def relax_ops(problem: PlacementProblem, paths: Paths) -> RelaxedOps:
    """Return the ops of a problem without their devices.

    Proof that ``share`` is right. Device ``d`` is busy for ``busy[v, d]`` seconds with op ``v`` and
    the overhead after it. With any ``speed >= 0`` of sum 1, let
    ``share[v] = min_d speed[d] busy[v, d]``. The ops that device ``d`` runs in ``L_d`` seconds then
    have shares of ``speed[d] L_d`` at most. (For equal devices this is the work over their number.)
    Any speeds give a bound. Here the speed of a device is the time of its ops on their fastest
    devices, relative to their time on this device.
    """
    graph = problem.graph
    can_run = np.isfinite(paths.seconds)
    rest = problem.overhead_time
    busy = np.where(can_run, problem.busy_time, np.inf)
    speed = _speeds(busy, can_run)
    weighted = np.where(can_run, np.where(can_run, busy, 0.0) * speed, np.inf)
    # No op can end before one that it depends on, also as sums of float64 are rounded.
    order = np.lexsort((graph.topological_index, paths.end.min(axis=1)))
    position = np.empty(graph.num_ops, np.int64)
    position[order] = np.arange(graph.num_ops)
    earlier_op, later_op = graph.precedences.T
    readers = position[later_op]
    by_reader = np.argsort(readers, kind="stable")
    return RelaxedOps(
        seconds=paths.seconds.min(axis=1)[order],
        rest=np.where(can_run, rest, np.inf).min(axis=1)[order],
        share=weighted.min(axis=1)[order],
        group=problem.grouping.group_of[order].astype(np.int64),
        offsets=np.searchsorted(readers[by_reader], np.arange(graph.num_ops + 1)),
        producers=position[earlier_op][by_reader],
        transfer=_least_transfers(problem, paths)[by_reader],
        speed=-np.sort(-speed),
        overhead=max(device.op_overhead for device in problem.cluster.devices),
    )


def _speeds(busy: NDArray[np.float64], can_run: NDArray[np.bool_]) -> NDArray[np.float64]:
    fastest = busy.min(axis=1)
    total_seconds = np.where(can_run, busy, 0.0).sum(axis=0)
    fastest_seconds = np.where(can_run, fastest[:, None], 0.0).sum(axis=0)
    speed = np.divide(
        fastest_seconds, total_seconds, out=np.ones(len(total_seconds)), where=total_seconds > 0
    )
    if not speed.any():
        speed = np.ones(len(total_seconds))
    scaled: NDArray[np.float64] = speed / speed.sum()
    return scaled


def _least_transfers(problem: PlacementProblem, paths: Paths) -> NDArray[np.float64]:
    """Return float64[E + W], the seconds of each edge between the devices where it is fastest."""
    graph, cluster = problem.graph, problem.cluster
    fastest = np.full(graph.num_edges + graph.num_waits, np.inf)
    size = graph.tensor_bytes[graph.edges[:, 0]]
    for source, target in paths.pairs.tolist():
        seconds = cluster.latency[source, target] + size / cluster.bandwidth[source, target]
        fastest[: graph.num_edges] = np.minimum(fastest[: graph.num_edges], seconds)
        fastest[graph.num_edges :] = 0.0  # nothing is sent
    return fastest


class Lags(NamedTuple):
    """From the end of one op to the start of another, by whether the two share a device.

    Both are float64[V, B], at ``[a, v - a]`` the least seconds between ops ``a`` and ``v``; -1
    where ``v`` does not depend on ``a``, or is too far from it; infinite where the case cannot be.
    """

    together: NDArray[np.float64]
    apart: NDArray[np.float64]

    def reversed(self) -> "Lags":
        """Return the lags of the ops backwards in time."""
        return Lags(_from_the_end(self.together), _from_the_end(self.apart))


def _from_the_end(lags: NDArray[np.float64]) -> NDArray[np.float64]:
    reversed_lags = np.full_like(lags, -1.0)
    for distance in range(min(lags.shape)):
        num_pairs = len(lags) - distance  # of ops that are so far apart
        reversed_lags[:num_pairs, distance] = lags[:num_pairs, distance][::-1]
    return reversed_lags


def region_lags(ops: RelaxedOps, band: int, largest_region: int, levels: int) -> Lags:
    """Return the lags between ops that are close to each other.

    Proof, by induction over the distance. *Paths:* let ``u`` be a producer of ``v`` that is ``a``
    or depends on it. If ``u`` and ``v`` share a device, ``v`` starts after the overhead of ``u``;
    if not, after the transfer. In a group they share it. The two answers decide if ``a`` shares a
    device with ``v``. If both are no, that is open, and no better than with one yes.

    *Regions:* let ``R`` be any of the ops that depend on ``a`` and on which ``v`` depends, and
    ``L`` the seconds from the end of ``a`` to the start of ``v``. Take the ops of ``R`` on one
    device. They start no earlier after the end of ``a`` than the least lag from ``a`` to an op in
    ``R``: ``together`` on the device of ``a``, ``apart`` on others. They end before the start of
    ``v`` by the least lag to ``v`` or more. The sum of the two lags on a device is its *delay*,
    less the overhead that may follow the last op. All of ``R`` fits into ``L`` only if ``sum_d
    speed[d] max(0, L - delay[d]) >= sum_R share``. If ``a`` and ``v`` share a device, that device
    has the least delay and all others the longest. If not, one device is close to ``a`` and one to
    ``v``. The left side is largest if faster devices have shorter delays. The least ``L`` for which
    it holds is therefore a bound. Ops with short ways to other devices are left out of ``R``, by
    falling thresholds: any choice is right, and the best counts.

    This is "one device or a transfer" at each fork and join, for any number of devices. Bounds of
    consecutive regions add up, as they are lags of further paths. Lags at the distance ``band`` and
    beyond are not computed, and regions of more than ``largest_region`` ops bring no bound.
    """
    shape = len(ops.seconds), band
    lags = Lags(np.full(shape, -1.0), np.full(shape, -1.0))
    fill_lags(ops, *lags, np.empty(largest_region, np.int64), np.empty((5, levels)))
    return lags


# Whole rows and largest values are loops here: NumPy's have errors that take seconds to compile.
# It returns nothing: Numba calls Python to make a tuple, where Ctrl-C is a segmentation fault.
@compiled
def fill_lags(
    ops: RelaxedOps,
    together: NDArray[np.float64],
    apart: NDArray[np.float64],
    between: NDArray[np.int64],
    of_levels: NDArray[np.float64],
) -> None:
    """Write the lags of `region_lags`, both of which are -1 where none is known.

    The last two are room for the ops of a region, and for `split_lag`.
    """
    num_ops, band = together.shape
    # Each constant that `split_lag` is given would compile it once more.
    nothing, is_shared = np.int64(0), np.bool_(True)
    for a in range(num_ops - 1, -1, -1):
        for v in range(a + 1, min(num_ops, a + band)):
            near, far = path_lags(ops, together, apart, a, v)
            if near < 0:
                continue
            size = nothing
            for u in range(a + 1, v):
                inside = together[a, u - a] >= 0 and together[u, v - u] >= 0
                if inside and ops.share[u] > 0:
                    if size == len(between):
                        size = nothing
                        break
                    between[size] = u
                    size += 1
            if size > 1:
                near = split_lag(
                    ops, together, apart, a, v, between, size, near, of_levels, is_shared
                )
                if far < np.inf:
                    far = split_lag(
                        ops, together, apart, a, v, between, size, far, of_levels, not is_shared
                    )
            together[a, v - a] = min(near, far)
            apart[a, v - a] = far


@called_by_compiled
def path_lags(
    ops: RelaxedOps, together: NDArray[np.float64], apart: NDArray[np.float64], a: int, v: int
) -> tuple[float, float]:
    """Return the longest lags by way of the producers of an op, on the same device and not."""
    near, far = -1.0, -1.0
    for edge in range(ops.offsets[v], ops.offsets[v + 1]):
        u = ops.producers[edge]
        if u < a or (u > a and together[a, u - a] < 0):
            continue
        at_near, at_far = 0.0, np.inf
        if u > a:
            at_near = together[a, u - a] + ops.seconds[u]
            at_far = apart[a, u - a] + ops.seconds[u]
        stays = ops.rest[u]
        moves = np.inf if ops.group[u] == ops.group[v] else ops.transfer[edge]
        near = max(near, min(at_near + stays, at_far + moves))
        far = max(far, min(at_near + moves, at_far + stays))
    if near >= 0 and ops.group[a] == ops.group[v]:
        far = np.inf
    return near, far


@called_by_compiled
def split_lag(
    ops: RelaxedOps,
    together: NDArray[np.float64],
    apart: NDArray[np.float64],
    a: int,
    v: int,
    region: NDArray[np.int64],
    size: np.int64,
    lag: float,
    of_levels: NDArray[np.float64],
    shared: bool | np.bool_,
) -> float:
    """Return the lag that a region makes, or the one given where that is longer.

    ``shared`` says whether the two ends share a device. Of each level are the least lags into the
    region and out of it, near and far, and the share.
    """
    least_lags, share, levels = of_levels, of_levels[4], of_levels.shape[1]
    for level in range(levels):
        share[level] = 0.0
        for end in range(4):
            least_lags[end, level] = np.inf
    for index in range(size):
        u = region[index]
        detour = apart[a, u - a] + apart[u, v - u]
        level = int(levels * detour / lag) if detour < lag else levels - 1
        level = min(level, levels - 1)
        share[level] += ops.share[u]
        least_lags[0, level] = min(least_lags[0, level], together[a, u - a])
        least_lags[1, level] = min(least_lags[1, level], apart[a, u - a])
        least_lags[2, level] = min(least_lags[2, level], together[u, v - u])
        least_lags[3, level] = min(least_lags[3, level], apart[u, v - u])
    for level in range(levels - 1, -1, -1):
        if level < levels - 1:
            share[level] += share[level + 1]
            for end in range(4):
                least_lags[end, level] = min(least_lags[end, level], least_lags[end, level + 1])
        if share[level] > 0:
            into_near, into_far = least_lags[0, level], least_lags[1, level]
            out_near, out_far = least_lags[2, level], least_lags[3, level]
            longest = into_far + out_far
            if shared:
                first, second = into_near + out_near, longest
            else:
                first = min(into_near + out_far, into_far + out_near)
                second = max(into_near + out_far, into_far + out_near)
            lag = max(lag, least_length(ops, share[level], first, second, longest))
    return lag


@called_by_compiled
def least_length(
    ops: RelaxedOps, share: float, first: float, second: float, longest: float
) -> float:
    """Return the least time in which devices with these delays, rising, have such a capacity."""
    speed: float = ops.speed[0]
    weighted: float = speed * (first - ops.overhead)
    length = (share + weighted) / speed
    for device in range(1, len(ops.speed)):
        delay = second if device == 1 else longest
        if delay == np.inf:
            break
        speed += ops.speed[device]
        weighted += ops.speed[device] * (delay - ops.overhead)
        length = min(length, (share + weighted) / speed)
    return length


def heads(ops: RelaxedOps, lags: Lags, num_groups: int) -> NDArray[np.float64]:
    """Return float64[V], seconds before which no op starts.

    Proof, by induction in the order of ops. Op ``v`` starts a lag after each op on which it depends
    (`region_lags`). Take any of those ops: all end before ``v`` starts, and start no earlier than
    the least of their heads. The devices have a capacity of 1 per second together. The shares of
    these ops, less one overhead that may follow the last op on each device, therefore fit into the
    time between. Ops of one group run on one device, one after the other. The last ops in the order
    are taken, as many as give the best bound.

    The same ops backwards in time give tails: seconds from the end of an op to the end of the step.
    """
    head, needed_by = np.zeros(len(ops.seconds)), np.full(len(ops.seconds), -1)
    fill_heads(ops, lags.together, head, needed_by, *np.empty((2, num_groups)))
    return head


@compiled
def fill_heads(
    ops: RelaxedOps,
    together: NDArray[np.float64],
    head: NDArray[np.float64],
    needed_by: NDArray[np.int64],
    group_seconds: NDArray[np.float64],
    group_head: NDArray[np.float64],
) -> None:
    """Write the heads of `heads`, which are 0 until then; the last three are room."""
    num_ops, band = together.shape
    for v in range(num_ops):
        for group in range(len(group_head)):
            group_seconds[group], group_head[group] = 0.0, np.inf
        share, least_head = 0.0, np.inf
        needed_by[v] = v
        for u in range(v, -1, -1):
            if needed_by[u] != v:
                continue
            for edge in range(ops.offsets[u], ops.offsets[u + 1]):
                needed_by[ops.producers[edge]] = v
            if u == v:
                continue
            lag = 0.0
            if v - u < band:
                lag = together[u, v - u]
            head[v] = max(head[v], head[u] + ops.seconds[u] + lag)
            group = ops.group[u]
            share, least_head = share + ops.share[u], min(least_head, head[u])
            group_seconds[group] += ops.seconds[u] + ops.rest[u]
            group_head[group] = min(group_head[group], head[u])
            alone = group_head[group] + group_seconds[group]
            head[v] = max(head[v], max(least_head + share, alone) - ops.overhead)


@compiled
def window_bound(
    ops: RelaxedOps,
    head: NDArray[np.float64],
    tail: NDArray[np.float64],
    order: NDArray[np.int64],
    ends: NDArray[np.float64],
    group_seconds: NDArray[np.float64],
) -> float:
    """Return least seconds of the step, from the ops that must run in windows of time.

    Proof. A step of ``T`` seconds runs an op between its head and ``T`` less its tail. Ops with
    heads ``>= t`` and tails ``>= s`` run within ``T - t - s`` seconds. Their shares fit into these,
    except for one overhead of each device, and so do the seconds of any one group. Each op alone
    also gives a bound. The ``order`` int64[V] is that of falling heads; ``ends`` float64[W] are the
    values of ``s`` that are tried, and ``t`` are all heads; ``group_seconds`` float64[G] are room.
    """
    bound = 0.0
    for op in order:
        bound = max(bound, head[op] + ops.seconds[op] + tail[op])
    for end in ends:
        share = 0.0
        for group_index in range(len(group_seconds)):
            group_seconds[group_index] = 0.0
        for op in order:
            if tail[op] >= end:
                group = ops.group[op]
                share += ops.share[op]
                group_seconds[group] += ops.seconds[op] + ops.rest[op]
                longest = max(share, group_seconds[group]) - ops.overhead
                bound = max(bound, head[op] + longest + end)
    return bound
