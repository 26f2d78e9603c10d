"""Graphs in the text format of DOPPLER (Yao et al., ICLR 2026).

Line 1 is the number of nodes, inputs included; line 2 has the numbers of the inputs. Lines 3 and 4
are the sources and the targets of the edges between the other nodes, which are numbered anew from
0. Each further line describes one of these nodes: ``compute,transfer``, whole numbers in units of
1e-10 s. If the type of the node is known, it follows after another comma.
"""

import os
import re

import numpy as np

from placeto_graphs.errors import GraphError, shown, within
from placeto_graphs.files.decoding import not_utf8
from placeto_graphs.files.storage import DEFAULT_MAX_BYTES, read_bytes
from placeto_graphs.schema.arrays import integer
from placeto_graphs.schema.cluster import MAX_DEVICES, Cluster, Device
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import OpGraph
from placeto_graphs.schema.problem import PlacementProblem

KIND = "accelerator"
UNITS = 1e10  # of cost in a second, and bytes that a link carries in one
MEMORY = 2**60  # no limit
_HEAD = 4  # lines
_NODE = re.compile(r"([0-9]{1,18}), *([0-9]{1,18})(?:, *([A-Za-z_]+))?")
_NUMBERS = re.compile(r"[0-9]{1,18}(?: *, *[0-9]{1,18})* *,?|")


def load_doppler_graph(
    path: str | os.PathLike[str], *, num_devices: int = 4, max_bytes: int = DEFAULT_MAX_BYTES
) -> PlacementProblem:
    r"""Read a graph of the repository of DOPPLER as a problem.

    Each node becomes an op, except the inputs, which DOPPLER does not place. An op takes
    ``compute`` units of 1e-10 s on every device, and its output takes ``transfer`` units between
    any two devices. The output has as many bytes as it has units, and links carry 1e10 bytes per
    second. Times are therefore right, and bytes are not known. Memory is not limited. The objective
    of the paper is that of ``placeto_simulator.ContentionFreeEvaluator``, in which no tensor waits
    for a link.

    Parameters
    ----------
    path
        Text file.
    num_devices
        Number of equal devices, which the file does not have.
    max_bytes
        Largest size that is read, in bytes.

    Raises
    ------
    GraphError
        When the file is not such a graph, or there cannot be so many devices.
    OSError
        When the file cannot be read.

    References
    ----------
    Yao et al., "DOPPLER: Dual-Policy Learning for Device Assignment in Asynchronous Dataflow
    Graphs", ICLR 2026.

    Examples
    --------
    Two inputs, and two nodes of a second, of which the second one reads the first:

    >>> from pathlib import Path
    >>> lines = ["4", "0, 1, ", "0, ", "1, ", "10000000000,40000000000", "10000000000,5"]
    >>> _ = Path("graph.txt").write_text("\n".join(lines))
    >>> problem = load_doppler_graph("graph.txt", num_devices=2)
    >>> problem.compute_time
    array([[1., 1.],
           [1., 1.]])
    """
    if not 1 <= integer("num_devices", num_devices) <= MAX_DEVICES:
        raise GraphError(
            f"num_devices: expected a number from 1 to {MAX_DEVICES}, got {num_devices}"
        )
    content = read_bytes(path, max_bytes)
    with within(f"{os.fspath(path)}: "):
        try:
            lines = content.decode().splitlines()
        except UnicodeDecodeError as error:
            raise not_utf8(error) from None
        graph, seconds = _parsed(lines)
        shape = (num_devices, num_devices)
        return PlacementProblem(
            graph=graph,
            cluster=Cluster(
                devices=tuple(
                    Device(f"{KIND}:{number}", KIND, MEMORY, 0.0, 0.0)
                    for number in range(num_devices)
                ),
                bandwidth=np.full(shape, UNITS),
                latency=np.zeros(shape),
            ),
            compute_time=np.tile(np.array(seconds)[:, None], (1, num_devices)),
            grouping=Grouping(
                group_of=np.arange(graph.num_ops, dtype=np.int32), group_names=graph.op_names
            ),
            rules=("id",),
        )


def _parsed(lines: list[str]) -> tuple[OpGraph, list[float]]:
    """Return the graph, and the seconds of each op."""
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) < _HEAD:
        raise GraphError(f"expected {_HEAD} lines before those of nodes, got {len(lines)}")
    totals, inputs, sources, targets = map(_numbers, lines[:_HEAD], range(1, _HEAD + 1))
    if len(totals) != 1:
        raise GraphError(f"line 1: expected the number of nodes, got {shown(lines[0])}")
    if len({*inputs}) < len(inputs) or max(inputs, default=-1) >= totals[0]:
        raise GraphError(
            f"line 2: expected different numbers of nodes below {totals[0]}, got {shown(lines[1])}"
        )
    count = totals[0] - len(inputs)
    if count != len(lines) - _HEAD:
        raise GraphError(
            f"expected a line for each of {count} nodes that are no inputs, got "
            f"{len(lines) - _HEAD}"
        )
    if len(sources) != len(targets):
        raise GraphError(
            f"line 4: expected {len(sources)} targets, as there are sources, got {len(targets)}"
        )
    for number, nodes in ((3, sources), (4, targets)):
        beyond = [node for node in nodes if node >= count]
        if beyond:
            raise GraphError(f"line {number}: expected nodes below {count}, got {beyond[0]}")
    costs = [_node(line, number) for number, line in enumerate(lines[_HEAD:], start=_HEAD + 1)]
    graph = OpGraph(
        op_names=tuple(f"node{node}" for node in range(count)),
        op_types=tuple(op_type for _, _, op_type in costs),
        tensor_producer=np.arange(count, dtype=np.int32),
        tensor_bytes=np.array([transfer for _, transfer, _ in costs], np.int64),
        edges=np.array([*dict.fromkeys(zip(sources, targets, strict=True))], np.int32),
    )
    return graph, [compute / UNITS for compute, _, _ in costs]


def _numbers(line: str, number: int) -> list[int]:
    if not _NUMBERS.fullmatch(line.strip()):
        raise GraphError(f"line {number}: expected numbers with commas, got {shown(line)}")
    return [int(text) for text in re.findall("[0-9]+", line)]


def _node(line: str, number: int) -> tuple[int, int, str]:
    match = _NODE.fullmatch(line.strip())
    if not match:
        raise GraphError(f"line {number}: expected COMPUTE,TRANSFER, got {shown(line)}")
    return int(match[1]), int(match[2]), match[3] or "node"
