"""Teams of devices for copies of a model, and the samples of a batch that each gets."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.search.chains import LayerChain, Stages, best_chain
from placeto_graphs import PlacementProblem

Team = tuple[int, ...]  # devices of a copy


def device_teams(problem: PlacementProblem) -> Iterator[list[Team]]:
    """Yield teams of equal size, each of which runs a copy of a model.

    They are of all accelerators; of those of the fastest kinds; and of each unlike machine. Devices
    of one machine are next to each other.

    Parameters
    ----------
    problem
        Problem of one copy; devices that cannot run all of its ops are left out.

    Examples
    --------
    >>> list(device_teams(problem))
    [[(1,), (2,)]]
    """
    cluster, seconds = problem.cluster, problem.compute_time.sum(axis=0)
    usable = [device for device in cluster.accelerators.tolist() if np.isfinite(seconds[device])]
    usable.sort(key=lambda device: cluster.machine[device])
    sets = [
        *([device for device in usable if seconds[device] <= limit] for limit in seconds[usable]),
        *([device for device in usable if cluster.machine[device] == m] for m in cluster.machine),
    ]
    yielded = set[tuple[str, ...]]()
    for devices in sorted(sets, key=len, reverse=True):
        kinds = kinds_of(problem, devices)
        if kinds in yielded:
            continue
        yielded.add(kinds)
        for size in range(1, len(devices) // 2 + 1):
            if len(devices) % size == 0:
                yield [tuple(devices[at : at + size]) for at in range(0, len(devices), size)]


def kinds_of(problem: PlacementProblem, devices: Sequence[int]) -> tuple[str, ...]:
    """Return the kinds of some devices."""
    return tuple(problem.cluster.devices[device].kind for device in devices)


def placements_on_teams(
    chain: LayerChain, teams: Sequence[Team], max_evaluations: int
) -> NDArray[np.int32] | None:
    """Return int32[k, G], the best chain of layers on each of k teams; None if there is none.

    Teams of the same kinds have the same stages.

    Parameters
    ----------
    chain
        Problem of one copy with its layers.
    teams
        Teams of devices.
    max_evaluations
        About the most stages that are evaluated for each unlike team.
    """
    placements, stages_of_kinds = [], dict[tuple[str, ...], Stages]()
    for team in teams:
        kinds = kinds_of(chain.problem, team)
        if kinds not in stages_of_kinds:
            stages = best_chain(chain, team, max_evaluations=max_evaluations)
            if stages is None:
                return None
            positions = tuple(team.index(device) for device in stages.devices)
            stages_of_kinds[kinds] = Stages(stages.bounds, positions)
        device_of_layer = np.array(team)[stages_of_kinds[kinds].device_of_layer()]
        placements.append(device_of_layer[chain.layer_of_group])
    return np.array(placements, np.int32)


def balanced_samples(
    batch: int,
    fixed: NDArray[np.float64],
    seconds: NDArray[np.float64],
    most: NDArray[np.float64],
    min_samples: int = 0,
) -> tuple[int, ...] | None:
    """Return the samples of each of k copies, so that the slowest one takes the least time.

    None if a copy would have no sample, or the memory does not suffice.

    Parameters
    ----------
    batch
        Number of samples of all copies.
    fixed, seconds
        float64[k], the time of each copy without samples, and of each of its samples, in seconds.
    most
        float64[k], the samples for which each copy has memory.
    min_samples
        Smallest number of samples of a copy.

    Examples
    --------
    >>> balanced_samples(6, np.zeros(2), np.array([1.0, 2.0]), np.array([9.0, 9.0]))
    (4, 2)
    """
    samples = np.full(len(fixed), min_samples, np.int64)
    for _ in range(batch - int(samples.sum())):
        ends = np.where(samples + 1 <= most, fixed + seconds * (samples + 1), np.inf)
        samples[ends.argmin()] += 1
    fits = (samples <= most).all() and samples.min() > 0
    return tuple(samples.tolist()) if fits else None
