"""Static mapping with the Scotch library."""

import contextlib
import io
import tempfile
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import accelerators
from placeto_baselines.errors import BaselineError, check_at_least
from placeto_baselines.extras import missing
from placeto_baselines.partitioning.architecture import (
    architecture_file,
    whole_distances,
    whole_speeds,
)
from placeto_baselines.partitioning.nodes import (
    Nodes,
    check_nodes,
    graph_of_nodes,
    placement_of_parts,
)
from placeto_baselines.partitioning.weights import WeightedGraph, speeds, weighted_graph
from placeto_baselines.trials import Trials
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult

DETERMINISTIC = 0  # SCOTCH_OPTIONNUMDETERMINISTIC of scotch.h


class Strategy(IntEnum):
    """What Scotch spends its time on; numbered as in scotch.h."""

    DEFAULT = 0
    QUALITY = 1


class ScotchPlacer:
    """Scotch (Pellegrini 2009): balanced work, little traffic ("Scotch" of Addanki et al. 2019).

    The library itself maps the graph onto the cluster: nodes weigh their seconds, edges their
    bytes, devices their speed. Where links differ the cluster is an architecture with distances,
    and the traffic over a link counts as often as it is far. It maps with its default strategy and
    with the one for quality; the faster placement of the two is the result. Scotch knows no order
    of execution and no memory.

    Parameters
    ----------
    imbalance
        How much more than its share of the work a device may get, as a part of it.
    nodes
        What is mapped: ``"groups"``, or ``"ops"``, of which each group then goes to where most of
        its work was mapped.
    only_accelerators
        Whether CPUs get nothing but what no accelerator can run: "MinCut" of Mirhoseini et al.
        (2017), whose "Scotch" maps to the CPU, too.

    Raises
    ------
    BaselineError
        When a setting is out of its range; by `place`, when pyscotch is not installed.

    Examples
    --------
    >>> placement = ScotchPlacer().place(problem, evaluator).placement
    >>> placement[0] == placement[2] != placement[1] == placement[3]
    np.True_
    """

    name = "scotch"

    def __init__(
        self,
        imbalance: float = 0.05,
        nodes: Nodes = "groups",
        *,
        only_accelerators: bool = True,
    ) -> None:
        check_at_least("imbalance", imbalance, 0)
        check_nodes(nodes)
        self.imbalance = imbalance
        self.nodes = nodes
        self.only_accelerators = only_accelerators

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the better placement of two strategies, with the random numbers of a seed."""
        trials = Trials(problem, evaluator)
        every_device = np.arange(problem.num_devices)
        devices = accelerators(problem) if self.only_accelerators else every_device
        graph = graph_of_nodes(problem, self.nodes)
        tensor_bytes = float(graph.edge_bytes.mean()) if graph.num_edges else 0.0
        weighted = weighted_graph(graph)
        device_speeds = whole_speeds(speeds(graph.compute_time[:, devices]))
        distances = whole_distances(problem.cluster, devices, tensor_bytes)
        for strategy in Strategy:
            parts = scotch_map(weighted, device_speeds, distances, self.imbalance, seed, strategy)
            trials.evaluate(placement_of_parts(problem, self.nodes, devices[parts])[None])
        return trials.result()


def scotch_map(
    graph: WeightedGraph,
    device_speeds: NDArray[np.int64],
    distances: NDArray[np.int64],
    imbalance: float,
    seed: int,
    strategy: Strategy = Strategy.DEFAULT,
) -> NDArray[np.int64]:
    """Map a graph with Scotch; return int64[N], the device of each node.

    Parameters
    ----------
    graph
        The graph of N nodes.
    device_speeds : int64[D]
        The weight of each device.
    distances : int64[D, D]
        How often traffic between two devices counts.
    imbalance
        How much more than its share a device may get.
    seed
        Of Scotch's random numbers.
    strategy
        What it spends its time on.

    Raises
    ------
    BaselineError
        When pyscotch is not installed, or set to integers of 32 bits.
    """
    pyscotch = _pyscotch()
    _settle(pyscotch)
    with (
        pyscotch.Architecture() as architecture,
        pyscotch.Strategy() as requested,
        pyscotch.Graph() as whole,
        pyscotch.Context() as context,
    ):
        _describe(architecture, device_speeds, distances)
        requested.request_mapping(pyscotch.StrategyFlags(strategy), balance=imbalance)
        whole.build(graph.offsets, graph.neighbours, graph.work, graph.traffic)
        context.option_set(DETERMINISTIC, 1)
        context.random_clone()
        context.random_seed(seed)
        context.random_reset()
        with context.bind_graph(whole) as bound:
            return np.asarray(bound.map(architecture, requested), np.int64)


def _settle(pyscotch: Any) -> None:
    """Use up the first context of a process: Scotch draws otherwise in it than in all others."""
    with pyscotch.Graph() as single, pyscotch.Context() as first:
        single.build(np.array([0, 0]), np.array([], np.int64))
        first.bind_graph(single).close()


def _describe(
    architecture: Any, device_speeds: NDArray[np.int64], distances: NDArray[np.int64]
) -> None:
    """Fill in a target architecture, the simplest that tells devices and links apart."""
    between = distances[~np.eye(len(distances), dtype=np.bool_)]
    if len(np.unique(between)) > 1:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "cluster.tgt")
            path.write_text(architecture_file(device_speeds, distances))
            architecture.load(path)
    elif np.ptp(device_speeds):
        architecture.complete_weighted(len(device_speeds), device_speeds)
    else:
        architecture.complete(len(device_speeds))


def _pyscotch() -> Any:
    try:
        # It is an extra, and loads the library; what it prints of that is of no use here.
        import pyscotch  # noqa: PLC0415

        with contextlib.redirect_stderr(io.StringIO()):
            bits = pyscotch.get_scotch_int_size()
    except ModuleNotFoundError as error:
        if error.name != "pyscotch":
            raise
        raise missing("pyscotch", "scotch") from None
    if bits != 64:
        raise BaselineError(f"PYSCOTCH_INT_SIZE: expected 64, got {bits}")
    return pyscotch
