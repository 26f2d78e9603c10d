"""Placements on fewer devices: each alone, some of them, and all filled one after the other."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from placeto.exporting.layers import order_of_groups
from placeto.placing.costs import SIMULATION_ERROR, fits, rank_of_result
from placeto.placing.evaluators import EvaluatorSpec
from placeto.texts import TextTable, bytes_text
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult

ALONE, IN_ORDER, BALANCED = "alone", "in-order", "balanced"
CHAIN, SEARCHED = "chain", "searched"
MOST_DEVICES_OF_ALL_SUBSETS = 4  # of more, only pairs are searched
MOST_DEVICES = 64  # of more, no subsets are searched
MOST_SUBSETS = 28  # the pairs of eight devices
LEAST_GAIN = 0.01  # a split that gains less is not worth it


@dataclass(frozen=True, eq=False)
class Choice:
    """A placement on some of the devices, and what it costs."""

    devices: tuple[int, ...]  # that may be used
    # `ALONE` on one device; filled `IN_ORDER`, or `BALANCED`; the best `CHAIN`; or `SEARCHED`
    how: str
    result: PlacementResult


def placements_without_search(problem: PlacementProblem, evaluator: Evaluator) -> list[Choice]:
    """Return each device alone, of equal ones the first, and all filled in order, GPUs equally."""
    if problem.num_devices == 1:
        return []
    runs = np.isfinite(problem.group_graph.compute_time)
    alone = [
        Choice((device,), ALONE, evaluated(evaluator, np.full(problem.num_groups, device)))
        for (device,) in unlike_subsets(problem, 1)
        if runs[:, device].all()
    ]
    hows = (IN_ORDER, BALANCED) if len(problem.cluster.accelerators) > 1 else (IN_ORDER,)
    return [*alone, *(_filled(problem, evaluator, how) for how in hows)]


def _filled(problem: PlacementProblem, evaluator: Evaluator, how: str) -> Choice:
    """Return a placement that fills the devices one after the other, accelerators first.

    Groups go in the order in which they run, as accelerate places models that fit no device:
    ``device_map="sequential"`` is `IN_ORDER`. ``"auto"`` is `BALANCED`: no accelerator but the last
    has more than an equal part of the weights. A group that a device cannot run goes to the
    fastest.
    """
    devices = sorted(range(problem.num_devices), key=lambda d: problem.cluster.devices[d].is_cpu)
    order = order_of_groups(problem, problem.grouping)
    weights = np.bincount(
        problem.grouping.group_of, problem.graph.parameter_bytes, problem.num_groups
    )
    held = np.append(0.0, np.cumsum(weights[order]))
    num_balanced = len(problem.cluster.accelerators) - 1 if how == BALANCED else 0
    seconds = problem.group_graph.compute_time
    fastest = seconds.argmin(axis=1).astype(np.int32)

    def filled(before: NDArray[np.int32], first: int, end: int, device: int) -> NDArray[np.int32]:
        row = before.copy()
        row[order[first:end]] = device
        runs = np.isfinite(seconds[np.arange(len(row)), row])
        return np.where(runs, row, fastest)

    placement = filled(fastest, 0, len(order), devices[-1])
    first = 0
    for number, device in enumerate(devices[:-1]):
        least, most = first, len(order)  # so many groups fit; more than so many do not
        if number < num_balanced:  # the group at the limit is where most of it belongs
            limit = held[first] + held[-1] / (num_balanced + 1)
            most = int(np.searchsorted((held[1:] + held[:-1]) / 2, limit, side="right"))
        tried = most  # all of them, in most cases
        while least < most:
            row = filled(placement, first, tried, device)
            peak = evaluator.evaluate(row[None]).peak_memory[0, device]
            if peak <= problem.cluster.devices[device].memory_bytes:
                least = tried
            else:
                most = tried - 1
            tried = (least + most + 1) // 2
        placement = filled(placement, first, least, device)
        first = least
    return Choice(tuple(devices), how, evaluated(evaluator, placement))


def evaluated(evaluator: Evaluator, placement: NDArray[np.integer]) -> PlacementResult:
    """Return a placement and its costs."""
    batch = evaluator.evaluate(placement[None].astype(np.int32))
    return PlacementResult(
        placement=placement.astype(np.int32),
        runtime=float(batch.runtime[0]),
        peak_memory=batch.peak_memory[0],
        evaluations=1,
        seconds=0.0,
        curve=np.array([[1.0, float(batch.runtime[0])]]),
    )


def unlike_subsets(problem: PlacementProblem, size: int) -> Iterator[tuple[int, ...]]:
    """Yield subsets of ``size`` devices, without those that are like an earlier one."""
    cluster, seen = problem.cluster, set()
    described = attrgetter("kind", "memory_bytes", "op_overhead", "transfer_overhead")
    alike = [  # measured times differ between equal devices
        (*described(device), problem.compute_time[:, index].tobytes())
        for index, device in enumerate(cluster.devices)
    ]
    for devices in combinations(range(cluster.num_devices), size):
        ordered = sorted(devices, key=lambda device: alike[device])
        inside = np.ix_(ordered, ordered)
        links = cluster.link[inside].ravel().tolist()
        looks = (
            tuple(alike[device] for device in ordered),
            cluster.bandwidth[inside].tobytes(),
            cluster.latency[inside].tobytes(),
            tuple(links.index(link) for link in links),
        )
        if looks not in seen:
            seen.add(looks)
            yield devices


def subsets_to_search(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """Return the subsets of several devices, but not all, that can run and hold all groups.

    All of up to four devices, of more devices pairs; none of very many unlike devices.
    """
    if problem.num_devices > MOST_DEVICES:
        return []
    few = problem.num_devices <= MOST_DEVICES_OF_ALL_SUBSETS
    sizes = range(2, problem.num_devices if few else 3)
    memory, needed = problem.cluster.memory_bytes, int(problem.graph.parameter_bytes.sum())
    runs = np.isfinite(problem.group_graph.compute_time)
    found = [
        devices
        for size in sizes
        if size < problem.num_devices
        for devices in unlike_subsets(problem, size)
        if sum(memory[list(devices)].tolist()) >= needed
        and runs[:, list(devices)].any(axis=1).all()
    ]
    return found if len(found) <= MOST_SUBSETS else []


def restricted(problem: PlacementProblem, devices: tuple[int, ...]) -> PlacementProblem:
    """Return a problem whose ops can run on some of the devices only."""
    elsewhere = np.ones(problem.num_devices, np.bool_)
    elsewhere[list(devices)] = False
    return replace(problem, compute_time=np.where(elsewhere, np.inf, problem.compute_time))


def chosen(
    problem: PlacementProblem, result: PlacementResult, choices: list[Choice]
) -> PlacementResult:
    """Return the best placement of a search and its choices, or a device alone as good as it."""
    cost = partial(rank_of_result, problem)
    best = min([result, *(choice.result for choice in choices)], key=cost)
    alone = [each.result for each in choices if each.how == ALONE]
    one = min((each for each in alone if each.fits(problem.cluster)), key=cost, default=best)
    if one.runtime - best.runtime <= LEAST_GAIN * abs(best.runtime):
        best = one
    counts = {name: getattr(result, name) for name in ("evaluations", "seconds", "curve")}
    return replace(best, **counts)


def worth_telling(problem: PlacementProblem, choices: list[Choice]) -> list[Choice]:
    """Return choices, without a chain of layers that a device alone or several in order beat."""
    simple = [each for each in choices if each.how in (ALONE, IN_ORDER, BALANCED)]
    least = min((rank_of_result(problem, each.result) for each in simple), default=(True, math.inf))
    return [
        each
        for each in choices
        if each.how != CHAIN or rank_of_result(problem, each.result) <= least
    ]


def choices_report(
    problem: PlacementProblem, result: PlacementResult, choices: list[Choice]
) -> list[dict[str, object]]:
    """Return each choice worth telling with its cost, also as a multiple of the result's."""
    names = problem.cluster.device_names
    return [
        {
            "how": choice.how,
            "devices": [names[device] for device in choice.devices],
            "runtime": choice.result.runtime,
            "relative": choice.result.runtime / result.runtime if result.runtime else math.nan,
            "fits": fits(problem, choice.result.peak_memory),
        }
        for choice in worth_telling(problem, choices)
    ]


def used_devices(problem: PlacementProblem, placement: NDArray[np.int32]) -> list[str]:
    """Return the names of the devices that a placement uses."""
    return [problem.cluster.device_names[device] for device in np.unique(placement)]


def choices_table(
    problem: PlacementProblem,
    result: PlacementResult,
    choices: list[Choice],
    evaluator: EvaluatorSpec,
) -> TextTable:
    """Return the costs of choices worth telling as a table; its title names the used devices."""
    names = problem.cluster.device_names
    rows = []
    for choice in worth_telling(problem, choices):
        devices = "+".join(names[device] for device in choice.devices)
        label = {
            ALONE: f"{devices} alone",
            IN_ORDER: "in order of memory",
            BALANCED: "equal weights",
            CHAIN: "best chain of layers",
            SEARCHED: devices,
        }
        lack = choice.result.peak_memory - problem.cluster.memory_bytes
        most = int(lack.argmax())
        lacking = f"out of memory: {names[most]} lacks {bytes_text(lack[most])}"
        lacking = lacking if lack[most] > 0 else ""
        compared = result.runtime and not lacking
        relative = f"{choice.result.runtime / result.runtime:.2f}x" if compared else ""
        rows.append([label[choice.how], evaluator.text(choice.result.runtime), relative, lacking])
    title = f"{_verdict(problem, result, choices)}. Other choices"
    return TextTable(title, ["devices", f">{evaluator.objective}", ">relative", ""], rows)


def _verdict(problem: PlacementProblem, result: PlacementResult, choices: list[Choice]) -> str:
    """Return whether to split, and over which devices."""
    used = used_devices(problem, result.placement)
    if len(used) == 1:
        return f"All on {used[0]}" + (": do not split" if result.fits(problem.cluster) else "")
    split = f"Split over {', '.join(used)}"
    alone = [each for each in choices if each.how == ALONE and each.result.fits(problem.cluster)]
    if not alone or not result.runtime:
        return split
    best = min(alone, key=lambda choice: choice.result.runtime)
    gain = best.result.runtime / result.runtime - 1
    if gain >= SIMULATION_ERROR:
        return split
    name = problem.cluster.device_names[best.devices[0]]
    faster = f"{100 * gain:.0f} % faster than {name} alone"
    return f"{split}: {faster}, within the accuracy of the simulation"
