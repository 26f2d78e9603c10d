"""Co-location: which ops should never be apart (Mirhoseini et al. 2017, section 3.2).

Each rule looks at one graph and returns a `Grouping`. `colocate` joins rules: ops that any of them
puts together are together. By its name a rule travels with a problem, and through its file.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError, short_repr
from placeto_graphs.grouping.labels import grouping_of_labels, join_pairs
from placeto_graphs.grouping.reachability import reached
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import FREE, FREE_TYPE, OpGraph, Phase

Rule = Callable[[OpGraph], Grouping]

NO_OWNER = -1


def colocate_by_id(graph: OpGraph) -> Grouping:
    """Put the ops of each colocation id into one group, which every placement must do.

    Parameters
    ----------
    graph
        A graph of V ops.
    """
    return grouping_of_labels(graph, graph.colocation_leaders)


def colocate_gradients(graph: OpGraph) -> Grouping:
    """Put each gradient op into the group of the forward op that it belongs to.

    If a gradient op shares its colocation id with a forward op, it belongs to that op. Otherwise
    the candidates are the forward ops of its own scope that make or read a tensor that the gradient
    op reads. It belongs to the last of them in topological order. Every use of a layer reads its
    weights, so tensors that live in weights count only if nothing else is shared. A
    gradient op that shares nothing with a forward op of its scope stays on its own.

    Parameters
    ----------
    graph
        A graph of V ops.
    """
    position, tensors, readers = graph.topological_index, *graph.edges.T
    is_forward, is_backward = (graph.phases == phase for phase in (Phase.FORWARD, Phase.BACKWARD))
    scope_ids: dict[str, int] = {}
    scope_of = np.array([scope_ids.setdefault(scope, len(scope_ids)) for scope in graph.scopes])
    num_scopes = np.int64(len(scope_ids))
    # Which forward ops make or read which tensors, and which of them gradient ops read.
    used_tensors = np.append(np.arange(graph.num_tensors), tensors)
    users = np.append(graph.tensor_producer, readers)
    used_tensors, users = used_tensors[is_forward[users]], users[is_forward[users]]
    tensors, readers = tensors[is_backward[readers]], readers[is_backward[readers]]
    last_user = _greatest_of_keys(
        used_tensors * num_scopes + scope_of[users],
        position[users],
        tensors * num_scopes + scope_of[readers],
    )
    # By activations rather than by weights: these are ranked after all of those.
    owner = np.full(graph.num_ops, NO_OWNER)
    ranks = last_user + graph.num_ops * ~graph.lives_in_weights[tensors]
    np.maximum.at(owner, readers, np.where(last_user == NO_OWNER, NO_OWNER, ranks))
    has_id = is_forward & (graph.colocation != FREE)
    last_of_id = _greatest_of_keys(graph.colocation[has_id], position[has_id], graph.colocation)
    owner = np.where(is_backward & (last_of_id != NO_OWNER), last_of_id, owner)
    members = np.flatnonzero(owner != NO_OWNER)
    return _joined(graph, members, graph.topological_order[owner[members] % graph.num_ops])


def _greatest_of_keys(
    keys: NDArray[np.integer], values: NDArray[np.integer], wanted: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Return the greatest value of each wanted key, -1 where it has none."""
    known_keys, place = np.unique(keys, return_inverse=True)
    greatest = np.full(len(known_keys) + 1, NO_OWNER)
    np.maximum.at(greatest, place, values)
    places = np.searchsorted(known_keys, wanted)
    is_known = np.append(known_keys, NO_OWNER)[places] == wanted
    return np.where(is_known, greatest[places], NO_OWNER)


def colocate_updates(graph: OpGraph) -> Grouping:
    """Put each update op into the group of its parameter.

    An update op belongs to the op with ``parameter_bytes`` whose tensor it reads. One that reads
    several parameters belongs to none of them and stays on its own.

    Parameters
    ----------
    graph
        A graph of V ops.
    """
    producers, consumers = graph.edge_producers, graph.edge_consumers
    reads = (graph.phases[consumers] == Phase.UPDATE) & (graph.parameter_bytes[producers] > 0)
    updates, parameters = _with_one_partner(graph, consumers[reads], producers[reads])
    return _joined(graph, updates, parameters)


def colocate_single_consumers(graph: OpGraph) -> Grouping:
    """Put an op whose output is read by one op only into the group of that op, recursively.

    Ops of type ``"placeto.free"`` do not count: they only keep what they read.
    In a training graph a backward op also reads most activations, which therefore stay apart. A
    gradient of an input that is computed with weights stays apart as well, because their update
    follows it. Otherwise all layers of a chain would be one group. In a PipeDream profile, backward
    ops are whole layers without weight updates. Each gradient then has one reader, and the rule
    makes one group between two forks: leave it out there.

    Parameters
    ----------
    graph
        A graph of V ops.
    """
    counts = np.array([op_type != FREE_TYPE for op_type in graph.op_types])
    producers, consumers = graph.edge_producers, graph.edge_consumers
    counted = counts[consumers]
    single, consumer = _with_one_partner(graph, producers[counted], consumers[counted])
    reads_weights = consumers[_made_of_weights(graph)[producers]]
    backward = graph.phases == Phase.BACKWARD
    apart = np.zeros(graph.num_ops, np.bool_)
    apart[reads_weights] = backward[reads_weights]
    together = ~(apart[single] & backward[consumer])
    return _joined(graph, single[together], consumer[together])


def _with_one_partner(
    graph: OpGraph, ops: NDArray[np.int32], partners: NDArray[np.int32]
) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """Return the ops that all their pairs join to one partner, and that partner of each."""
    lowest = np.full(graph.num_ops, graph.num_ops, np.int32)
    highest = np.full(graph.num_ops, -1, np.int32)
    np.minimum.at(lowest, ops, partners)
    np.maximum.at(highest, ops, partners)
    single = np.flatnonzero(lowest == highest)
    return single, lowest[single]


def _made_of_weights(graph: OpGraph) -> NDArray[np.bool_]:
    """Return bool[V], the weights and what the forward pass makes of them alone, such as casts."""
    holds_weights: NDArray[np.bool_] = graph.parameter_bytes > 0
    has_inputs = np.zeros(graph.num_ops, np.bool_)
    has_inputs[graph.edge_consumers] = True
    may_be_made = holds_weights | (has_inputs & (graph.phases == Phase.FORWARD))
    return ~reached(graph, ~may_be_made, ~holds_weights)


def colocate_scopes(graph: OpGraph, pattern: str) -> Grouping:
    r"""Put ops into one group whose scopes begin with the same text that matches a pattern.

    Parameters
    ----------
    graph
        A graph of V ops.
    pattern
        Regular expression, matched at the beginning of each scope:
        ``r"decoder\.step\d+\.attention"`` makes one group of each attention step.

    Raises
    ------
    GraphError
        When the pattern is not a regular expression.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> ops = nx.DiGraph()
    >>> for scope in ("lstm.step0.gate", "lstm.step0.cell", "lstm.step1.gate"):
    ...     ops.add_node(scope, scope=scope)
    >>> colocate_scopes(from_networkx(ops), r"lstm\.step\d+").group_of
    array([0, 0, 1], dtype=int32)
    """
    compiled_pattern = _compiled("pattern", pattern)
    matches = {scope: compiled_pattern.match(scope) for scope in set(graph.scopes)}
    first_op: dict[str, int] = {}
    leaders = np.arange(graph.num_ops)
    for op, scope in enumerate(graph.scopes):
        match = matches[scope]
        if match:
            leaders[op] = first_op.setdefault(match.group(), op)
    return grouping_of_labels(graph, leaders)


def _compiled(field: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise GraphError(
            f"{field}: expected a regular expression, got {short_repr(pattern)}: {error}"
        ) from None


NAMED_RULES: dict[str, Rule] = {
    "id": colocate_by_id,
    "gradients": colocate_gradients,
    "updates": colocate_updates,
    "single-consumers": colocate_single_consumers,
}
"""The co-location rules that files name, but for those of scopes."""
SCOPES = "scopes:"  # before the pattern of `colocate_scopes`
DEFAULT_RULES: tuple[Rule, ...] = tuple(NAMED_RULES.values())
"""The rules of `colocate`, unless others are given."""


def colocate(graph: OpGraph, rules: Sequence[Rule] = DEFAULT_RULES) -> Grouping:
    r"""Return the groups of ops that any of the rules puts together.

    Parameters
    ----------
    graph
        A graph of V ops.
    rules
        Functions from a graph to a `Grouping` of its ops. By default those of Mirhoseini et al.
        (2017): colocation ids, gradients with their forward ops, updates with their parameters, and
        single consumers, recursively. Without any rule each op is a group of its own.

    Examples
    --------
    Keep each time step of an LSTM layer together as well:

    >>> from functools import partial
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> steps = nx.DiGraph()
    >>> for step in range(2):
    ...     steps.add_node(f"add{step}", scope=f"lstm.step{step}")
    ...     steps.add_node(f"tanh{step}", scope=f"lstm.step{step}")
    >>> rule = partial(colocate_scopes, pattern=r"lstm\.step\d+")
    >>> colocate(from_networkx(steps), [*DEFAULT_RULES, rule]).group_names
    ('add0', 'add1')
    """
    # Each grouping ties every op to the first op of its group.
    groupings = [rule(graph) for rule in rules]
    leaders = [grouping.first_ops[grouping.group_of] for grouping in groupings]
    ops = np.tile(np.arange(graph.num_ops), len(leaders))
    return _joined(graph, ops, np.concatenate([ops[:0], *leaders]))


def rules_of_names(names: Iterable[str]) -> tuple[Rule, ...]:
    r"""Return the co-location rules of some names.

    Parameters
    ----------
    names
        Each is ``"id"``, ``"gradients"``, ``"updates"``, ``"single-consumers"``, or ``"scopes:"``
        and the pattern of `colocate_scopes`.

    Raises
    ------
    GraphError
        When a name is none of these, or the pattern is not a regular expression.

    Examples
    --------
    >>> from placeto_graphs import DEFAULT_RULES
    >>> names = ["id", "gradients", "updates", "single-consumers"]
    >>> rules_of_names(names) == DEFAULT_RULES
    True
    >>> rules_of_names([r"scopes:decoder\.step\d+"])[0].keywords
    {'pattern': 'decoder\\.step\\d+'}
    """
    rules: list[Rule] = []
    for index, name in enumerate(names):
        if name.startswith(SCOPES):
            pattern = name.removeprefix(SCOPES)
            _compiled(f"rules[{index}]", pattern)
            rules.append(partial(colocate_scopes, pattern=pattern))
        elif name in NAMED_RULES:
            rules.append(NAMED_RULES[name])
        else:
            raise GraphError(
                f"rules[{index}]: expected one of {', '.join(NAMED_RULES)} or {SCOPES}PATTERN, "
                f"got {short_repr(name)}"
            )
    return tuple(rules)


def names_of_rules(rules: Iterable[Rule]) -> tuple[str, ...] | None:
    r"""Return the names of co-location rules, None if one of them has no name.

    Parameters
    ----------
    rules
        Functions as `colocate` takes them. Rules of scopes are
        ``functools.partial(colocate_scopes, pattern=...)``.

    Examples
    --------
    >>> names_of_rules([colocate_by_id, colocate_updates])
    ('id', 'updates')
    """
    names: list[str] = []
    for rule in rules:
        matching_names = [name for name, named_rule in NAMED_RULES.items() if named_rule is rule]
        if isinstance(rule, partial) and rule.func is colocate_scopes and not rule.args:
            names.append(SCOPES + str(rule.keywords["pattern"]))
        elif matching_names:
            names += matching_names
        else:
            return None
    return tuple(names)


def _joined(graph: OpGraph, ops: NDArray[np.integer], leaders: NDArray[np.integer]) -> Grouping:
    return grouping_of_labels(graph, join_pairs(graph.num_ops, ops, leaders))
