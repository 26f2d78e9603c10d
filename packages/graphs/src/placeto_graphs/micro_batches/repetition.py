"""From one micro-batch to the step of several: GPipe (Huang et al. 2019)."""

from placeto_graphs.errors import GraphError
from placeto_graphs.micro_batches.assembly import repeated_graph, repeated_grouping
from placeto_graphs.micro_batches.division import one_micro_batch
from placeto_graphs.micro_batches.layout import layout_of
from placeto_graphs.micro_batches.roles import checked_count
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import OpGraph


def micro_batched(graph: OpGraph, num_micro_batches: int) -> OpGraph:
    """Return the graph of the same step in m micro-batches, as GPipe runs it.

    The batch is cut into m equal parts. What depends on it runs once for each of them; weights,
    buffers, what is computed of these alone, and the update are there once. The gradients of a
    weight, which are what the update reads of the backward pass, are added up as they come: from
    the second micro-batch on by an op of type ``placeto.add_gradients`` in the backward phase.

    - **Ops that depend on the batch** are those that can be reached from ops without inputs that
      hold no weights, other than through the update. Where no gradient, or in a step without any
      nothing that it ends with, can be reached from such an op of the forward pass, they are all
      ops but weights and the update. The copy of ``conv`` for the fourth micro-batch is ``conv@3``.
      If such an op holds weights, its copies share them out.
    - **Parts.** A copy has one part of m of the FLOPs, bytes, measured times and tensors
      (`one_micro_batch`). Use `repeat_micro_batch` where a graph of the smaller batch is there.
    - **Tensors** of what runs once are read by all copies. What the update reads of the forward
      pass, or with 0 bytes, is not added up: it reads that of each micro-batch.
    - **Sums** have three times the bytes of the gradient to read and write, and a FLOP for each of
      its float32 numbers. Each is a new tensor, on the device of the op that makes the gradient.
      A sum takes no longer than an op of the update that reads the gradient, and if that one moves
      more bytes, its part of that time: an update with a rule of one multiplication and addition
      does the same work. For a kind of device that was not measured it has no time.
      What clips or scales gradients belongs to the update: in the backward phase it would read
      those of one micro-batch.
    - **Order.** First all forward ops, one micro-batch after the other, then all backward ops, then
      the update. In GPipe's figure the backward pass begins with the last micro-batch. Here it
      begins with the first one, which is ready first, as in PyTorch's ``ScheduleGPipe`` and in
      1F1B; where all take equally long, the step does, too.

    Parameters
    ----------
    graph
        The graph of the undivided training or inference step.
    num_micro_batches
        The number m of micro-batches, >= 1; with 1 the graph is the same.

    Raises
    ------
    GraphError
        When the number is not an integer >= 1.

    References
    ----------
    Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
    NeurIPS 2019.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> step = nx.DiGraph([("images", "layer"), ("layer", "gradient"), ("weights", "layer")])
    >>> step.add_node("weights", parameter_bytes=64)
    >>> step.add_node("gradient", phase=1)
    >>> step.add_node("update", phase=2)
    >>> step.add_edge("gradient", "update", bytes=64)
    >>> for name in micro_batched(from_networkx(step), 2).op_names:
    ...     print(name)
    weights
    images@0
    layer@0
    images@1
    layer@1
    gradient@0
    gradient@1
    gradient/sum0@1
    update
    """
    return repeat_micro_batch(one_micro_batch(graph, num_micro_batches), num_micro_batches)


def repeat_micro_batch(graph: OpGraph, num_micro_batches: int) -> OpGraph:
    """Return the graph of a step in m micro-batches, each of which a graph describes.

    As `micro_batched`, but nothing is divided: the graph is that of a step with an m-th part of the
    batch, such as one that was captured or measured with it.

    Parameters
    ----------
    graph
        The graph of a step that has one micro-batch as its batch.
    num_micro_batches
        The number m of micro-batches, >= 1; with 1 the graph is the same.

    Raises
    ------
    GraphError
        When the number is not an integer >= 1.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> layers = from_networkx(nx.DiGraph([("images", "layer")]))
    >>> repeat_micro_batch(layers, 2).op_names
    ('images@0', 'layer@0', 'images@1', 'layer@1')
    """
    count = checked_count(num_micro_batches)
    return graph if count == 1 else repeated_graph(graph, layout_of(graph, count))


def micro_batched_grouping(graph: OpGraph, grouping: Grouping, num_micro_batches: int) -> Grouping:
    """Return the groups of a step in micro-batches: as many, of the same names.

    The copies of an op are in its group, so that a placement of the undivided step is one of the
    step in micro-batches. The sum of a gradient is in the group of the op that makes it.

    Parameters
    ----------
    graph
        The graph of the undivided step, or of one micro-batch.
    grouping
        Its groups.
    num_micro_batches
        The number m of micro-batches, >= 1.

    Raises
    ------
    GraphError
        When the number is not an integer >= 1, or the grouping is of another graph.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import colocate, from_networkx
    >>> layers = from_networkx(nx.DiGraph([("images", "layer")]))
    >>> groups = micro_batched_grouping(layers, colocate(layers, rules=()), 2)
    >>> groups.group_of.tolist(), groups.group_names
    ([0, 1, 0, 1], ('images', 'layer'))
    """
    count = checked_count(num_micro_batches)
    if grouping.num_ops != graph.num_ops:
        raise GraphError(
            f"grouping.group_of: expected the groups of {graph.num_ops} ops, got {grouping.num_ops}"
        )
    return grouping if count == 1 else repeated_grouping(graph, grouping, layout_of(graph, count))
