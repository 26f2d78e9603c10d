"""Steps whose transfers do not wait: by hand, and against a plain reading of the rules."""

import numpy as np
from hypothesis import given
from numpy.typing import NDArray
from test_simulator import two_chains

from placeto_graphs import PlacementProblem
from placeto_simulator import ContentionFreeEvaluator, Simulator
from simulated_problems import Placed, placed_problems


def plain_seconds(problem: PlacementProblem, placement: NDArray[np.int32]) -> float:
    """Return the seconds of a step, looking at all ops again whenever anything may happen."""
    graph, cluster, at = problem.graph, problem.cluster, problem.expand(placement).tolist()
    needed: list[list[tuple[int, float]]] = [[] for _ in at]
    for tensor, op in graph.edges.tolist():
        maker = int(graph.tensor_producer[tensor])
        way = (at[maker], at[op])
        travels = cluster.latency[way] + graph.tensor_bytes[tensor] / cluster.bandwidth[way]
        needed[op].append((maker, 0.0 if way[0] == way[1] else float(travels)))
    for op, before in graph.waits.tolist():
        needed[op].append((before, 0.0))
    end: dict[int, float] = {}
    queues: list[list[int]] = [[] for _ in cluster.devices]
    free = [0.0 for _ in queues]
    unready = list(range(len(at)))
    times = {0.0}
    while times:
        now = min(times)
        times.discard(now)
        changed = True
        while changed:
            changed = False
            for op in unready.copy():
                if all(maker in end for maker, _ in needed[op]):
                    ready = max((end[maker] + late for maker, late in needed[op]), default=0.0)
                    if ready <= now:
                        queues[at[op]].append(op)
                        unready.remove(op)
                    else:
                        times.add(ready)
            for device, queue in enumerate(queues):
                if queue and free[device] <= now:
                    op = queue.pop(0)
                    seconds = float(problem.compute_time[op, device])
                    end[op] = free[device] = now + seconds
                    if seconds > 0:
                        free[device] += cluster.devices[device].op_overhead
                    times |= {time for time in (end[op], free[device]) if time > now}
                    changed = True
    return max(end.values())


@given(placed_problems())
def test_steps_are_those_of_the_rules(placed: Placed) -> None:
    problem, placements = placed
    found = ContentionFreeEvaluator(problem).evaluate(placements).runtime
    expected = [plain_seconds(problem, placement) for placement in placements]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_tensor_does_not_wait_for_the_one_before() -> None:
    """The first tensor travels from 1 to 2.125 s, the second from 2.25 to 4.375 s."""
    problem, crossed = two_chains(), np.array([[0, 0, 1, 1]], np.int32)
    found = ContentionFreeEvaluator(problem).evaluate(crossed)
    assert found.runtime.tolist() == [5.375]
    assert found.peak_memory.tolist() == [[1000, 0]]
    # Its bus rests for half a second after the first one.
    assert Simulator(problem, num_threads=1).evaluate(crossed).runtime.tolist() == [5.75]
