"""Graph partitioning with the METIS library."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import speeds
from placeto_baselines.errors import import_extra
from placeto_baselines.partitioning.partitioner import Partitioner, WeightedGraph, weighted_graph
from placeto_graphs import Cluster, GroupGraph


class MetisPlacer(Partitioner):
    """METIS (Karypis and Kumar 1998): parts in proportion to speed, with little traffic.

    The library itself cuts the graph into as many parts as there are devices. Nodes weigh their
    seconds on the devices that get a part, edges their bytes. METIS ignores distances, the order of
    execution and the memory. Fewer nodes than devices are not cut: each gets a device of its own,
    the fastest first.

    Parameters
    ----------
    imbalance
        Largest work of a device beyond its share, as a fraction of the share; at least a
        thousandth, which is METIS' unit.
    nodes
        Nodes that are partitioned: ``"groups"``, or ``"ops"``: each group then goes to where most
        of its work was mapped.
    only_accelerators
        True if CPUs get only groups that no accelerator can run.

    Raises
    ------
    BaselineError
        When a setting is out of its range; by `place`, when pymetis is not installed.

    Examples
    --------
    >>> placement = MetisPlacer().place(problem, evaluator).placement
    >>> placement[0] == placement[2] != placement[1] == placement[3]
    np.True_
    """

    name = "metis"
    least_imbalance = 0.001

    def parts(
        self,
        graph: GroupGraph,
        cluster: Cluster,  # noqa: ARG002
        devices: NDArray[np.intp],  # noqa: ARG002
        seed: int,
    ) -> Iterator[NDArray[np.int64]]:
        shares = speeds(graph.compute_time)
        yield metis_parts(weighted_graph(graph), shares / shares.sum(), self.imbalance, seed)


def metis_parts(
    graph: WeightedGraph, shares: NDArray[np.float64], imbalance: float, seed: int
) -> NDArray[np.int64]:
    """Partition a graph with METIS; return int64[N], the part of each node.

    ``shares`` float64[D] are the parts of the work that each is to get; they sum to 1.
    """
    pymetis = import_extra("pymetis", "metis", ["pymetis"])
    if len(graph.work) <= len(shares):
        order = np.argsort(-shares, kind="stable")
        return order[: len(graph.work)]
    dtype = pymetis.zero_copy_dtype()
    found = pymetis.part_graph(
        len(shares),
        pymetis.CSRAdjacency(graph.offsets.astype(dtype), graph.neighbours.astype(dtype)),
        vweights=graph.work.astype(dtype),
        eweights=graph.traffic.astype(dtype),
        tpwgts=shares.tolist(),
        options=pymetis.Options(seed=seed % 2**31, ufactor=round(imbalance * 1000)),
    )
    return np.asarray(found.vertex_part, np.int64)
