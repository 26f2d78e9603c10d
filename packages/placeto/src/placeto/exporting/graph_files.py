"""The graph of groups with their devices, as files that graph programs read."""

import re

import networkx as nx
import numpy as np
import pydot
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto_graphs import PlacementProblem, groups_to_networkx

# Control characters and halves of surrogate pairs; a tab or a new line would come back as a space.
NOT_IN_XML = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def graphml_text(problem: PlacementProblem, placement: NDArray[np.int32]) -> str:
    """Return the groups of a placement, int32[G], as GraphML; see `groups_to_networkx`."""
    for name in (*problem.grouping.group_names, *problem.cluster.device_names):
        if NOT_IN_XML.search(name):
            raise InputError(f"PROBLEM: expected names that XML can hold, got {name!r}")
    return "\n".join(nx.generate_graphml(groups_to_networkx(problem, placement))) + "\n"


def dot_text(problem: PlacementProblem, placement: NDArray[np.int32]) -> str:
    """Return the groups of a placement, int32[G], in Graphviz's language."""
    graph = groups_to_networkx(problem, placement)
    quoted = nx.relabel_nodes(graph, {name: _quoted(name) for name in graph})
    drawn: pydot.Dot = nx.nx_pydot.to_pydot(quoted)
    return drawn.to_string()


def _quoted(name: str) -> str:
    """Quote a name: a colon in it would else begin what Graphviz calls a port."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
