"""A model in stages for torch.distributed.pipelining: `placed_stage` returns one of them."""

from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage

SPLIT_POINTS: list[str] = []  # the modules that all stages but the first begin with
DEVICES: list[str] = []  # of the stages


def placed_stage(
    model: torch.nn.Module,
    index: int,
    device: torch.device,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    group: ProcessGroup | None = None,
) -> PipelineStage:
    """Return a stage of a model, made from example arguments of one micro-batch.

    Tensors go to the next stage only, as gradients come back from there only: a stage passes on
    what later stages read.
    """
    traced = torch.export.export(model, mb_args, mb_kwargs).module()
    nodes: list[list[torch.fx.Node]] = [[] for _ in range(len(SPLIT_POINTS) + 1)]
    stage_of: dict[torch.fx.Node, int] = {}
    stage, values = 0, []
    for node in traced.graph.nodes:
        scopes = [scope for scope, _ in node.meta.get("nn_module_stack", {}).values()]
        if stage < len(SPLIT_POINTS) and SPLIT_POINTS[stage] in scopes:
            stage += 1
        is_input = node.op == "placeholder" and isinstance(node.meta["val"], torch.Tensor)
        if is_input:
            values.append(node.meta["val"])
        if is_input or node.op == "call_function":
            nodes[stage].append(node)
            stage_of[node] = stage
    last_read = {
        node: max((stage_of.get(reader, 0) for reader in node.users), default=0)
        for node in stage_of
    }
    results: list[torch.fx.Node] = []
    fake_mode = values[0].fake_mode
    for stage in range(index + 1):
        arguments = results
        results = [node for node in stage_of if stage_of[node] <= stage < last_read[node]]
        if stage == len(SPLIT_POINTS):
            results = traced.graph.output_node().all_input_nodes
        module = _stage_module(traced, arguments, nodes[stage], results)
        weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        fakes = {
            name: fake_mode.from_tensor(weight, static_shapes=True)
            for name, weight in weights.items()
        }
        with fake_mode:  # for the sizes of tensors, and which of them have gradients
            inputs, outputs = values, torch.func.functional_call(module, fakes, tuple(values))
        values = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    for inner in module.modules():
        if isinstance(inner, torch.fx.GraphModule):
            for node in inner.graph.nodes:
                if "device" in node.kwargs:
                    node.update_kwarg("device", device)
            inner.recompile()
    module.to(device)
    return PipelineStage(
        module, index, len(nodes), device, tuple(inputs), tuple(values), group=group
    )


def _stage_module(
    traced: torch.fx.GraphModule,
    arguments: list[torch.fx.Node],
    nodes: list[torch.fx.Node],
    results: list[torch.fx.Node],
) -> torch.fx.GraphModule:
    """Return a module of some nodes, with the weights that these read, by their names."""
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in arguments}

    def copied(node: torch.fx.Node) -> torch.fx.Node:
        if node not in copies:
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in nodes:
        copies[node] = graph.node_copy(node, copied)
    sent = [graph.call_method("contiguous", (copies[node],)) for node in results if node in copies]
    graph.output(sent[0] if len(sent) == 1 else tuple(sent))
    return torch.fx.GraphModule(traced, graph)
