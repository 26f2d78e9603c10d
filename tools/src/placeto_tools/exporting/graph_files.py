"""The graph of groups with their devices, as files that graph programs read."""

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem
from placeto_graphs import groups_to_networkx


def graphml_text(problem: PlacementProblem, placement: NDArray[np.int32]) -> str:
    """Return the groups of a placement, int32[G], as GraphML; see `groups_to_networkx`."""
    return "\n".join(nx.generate_graphml(groups_to_networkx(problem, placement))) + "\n"


def dot_text(problem: PlacementProblem, placement: NDArray[np.int32]) -> str:
    """Return the groups of a placement, int32[G], in Graphviz's language."""
    graph = groups_to_networkx(problem, placement)
    quoted = nx.relabel_nodes(graph, {name: _quoted(name) for name in graph})
    text: str = nx.nx_pydot.to_pydot(quoted).to_string()
    return text


def _quoted(name: str) -> str:
    """Quote a name: a colon in it would else begin what Graphviz calls a port."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
