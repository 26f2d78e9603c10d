"""A runtime that no placement can beat."""

from placeto_baselines.bounds.crowding import crowding_bound
from placeto_baselines.bounds.paths import longest_paths
from placeto_baselines.bounds.split import split_bound
from placeto_baselines.bounds.work import work_programme
from placeto_baselines.errors import BaselineError
from placeto_graphs import PlacementProblem

SECONDS_PER_BYTE = 2e-9  # 2 s/GB, as `placeto_graphs.memory_penalised_runtime` takes it
MOST_OPS_OF_CROWDING = 20_000  # its time grows with the square of the ops
ROUNDING = 1e-9  # in parts of the bound: more than sums of a million float64 can be off


def lower_bound(problem: PlacementProblem, *, scale: float = SECONDS_PER_BYTE) -> float:
    """Return seconds that no placement beats, as the simulated step of the design counts them.

    It bounds the memory-penalised runtime, which is the runtime for a placement that fits the
    memory. (The bare runtime of one that does not may be lower.) It is the largest of

    - the longest path of ops, each on the device of its group where that path is shortest,
      transfers between groups and overheads included (`bounds.paths`);
    - the work of all groups over the devices, as a linear programme over devices of different
      speed and memory, with the paths through each group (`bounds.work`);
    - what ops that could run side by side take because there are too few devices for them, between
      each two ops that they lie between, transfers there and back included, and in windows of time
      (`bounds.regions`, `bounds.windows`; of graphs of up to 20,000 ops, where it takes seconds);
    - for each connected part of the graph, the lesser of its work on one device with the penalty
      of the memory that it lacks, and of the shortest path with a transfer in it: what memory
      forces to be transferred (`bounds.split`).

    Each is proven where it is computed, and lowered by a billionth against rounding.

    Parameters
    ----------
    problem
        What is to be placed.
    scale
        Seconds that each byte over the memory of a device costs.

    Raises
    ------
    BaselineError
        When the scale is not a number >= 0.

    Examples
    --------
    >>> lower_bound(problem) <= optimal(problem, evaluator).runtime
    True
    >>> round(lower_bound(problem), 6)
    1.0
    """
    return max(bound_parts(problem, scale=scale).values())


def bound_parts(problem: PlacementProblem, *, scale: float = SECONDS_PER_BYTE) -> dict[str, float]:
    """Return the bounds of which `lower_bound` is the largest: path, work, split and crowding.

    Parameters
    ----------
    problem, scale
        As for `lower_bound`.

    Raises
    ------
    BaselineError
        When the scale is not a number >= 0.

    Examples
    --------
    >>> parts = bound_parts(problem)
    >>> sorted(parts), max(parts.values()) == lower_bound(problem)
    (['crowding', 'path', 'split', 'work'], True)
    """
    if not 0 <= scale < float("inf"):
        raise BaselineError(f"scale: expected a number >= 0, got {scale}")
    paths = longest_paths(problem)
    programme = work_programme(problem, paths, scale)
    is_small = problem.graph.num_ops <= MOST_OPS_OF_CROWDING
    parts = {
        "path": float(programme.path.min(axis=1).max()),
        "work": programme.solve(),
        "split": split_bound(problem, paths, programme),
        "crowding": crowding_bound(problem, paths) if is_small else 0.0,
    }
    return {name: max(0.0, bound) * (1 - ROUNDING) for name, bound in parts.items()}
