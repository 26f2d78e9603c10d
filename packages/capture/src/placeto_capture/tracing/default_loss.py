"""The loss of a model that is captured without a loss function."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.origins import nodes_behind


def default_loss(outputs: Any) -> torch.Tensor:
    """Return the loss of outputs: named so, else their one scalar, else the sum of all means."""
    is_mapping = isinstance(outputs, Mapping) and "loss" in outputs
    loss = outputs["loss"] if is_mapping else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):  # it is None of a model without labels
        return loss
    floating = [tensor for tensor in tensors_in(outputs) if tensor.is_floating_point()]
    if not floating:
        raise CaptureError("loss_fn: expected one, as the model gives no floating-point tensor")
    scalars = [leaf for leaf in floating if leaf.dim() == 0]
    if scalars:
        return _checked_scalar(scalars, floating)
    return sum((leaf.mean() for leaf in floating[1:]), floating[0].mean())


def _checked_scalar(scalars: list[torch.Tensor], floating: list[torch.Tensor]) -> torch.Tensor:
    """Return the scalar that all of the network is behind, if there is no other to choose."""
    # A number that nothing can learn from, such as an accuracy, is no loss.
    candidates = [scalar for scalar in scalars if scalar.requires_grad] or scalars
    distinct = {id(scalar): scalar for scalar in candidates}
    if len(distinct) > 1:
        raise CaptureError(
            "loss_fn: expected one, as the model gives no output named loss, "
            f"and {len(distinct)} scalars"
        )
    (scalar,) = distinct.values()
    leaves = _leaves_behind(floating)
    reached = len(_leaves_behind([scalar]))
    if reached < len(leaves):
        raise CaptureError(
            "loss_fn: expected one, as the model gives no output named loss, and its one scalar "
            f"depends on {reached} of the {len(leaves)} weights that its outputs depend on"
        )
    return scalar


def _leaves_behind(tensors: Iterable[torch.Tensor]) -> set[Any]:
    """Return the nodes of autograd's graph that stand for the weights behind some tensors."""
    nodes = nodes_behind(tensor for tensor in tensors if tensor.requires_grad)
    return {
        node for node in nodes if all(next_node is None for next_node, _ in node.next_functions)
    }


def tensors_in(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors in what a model returns, also those in dataclasses."""
    tensors: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(outputs):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif is_dataclass(leaf):
            tensors += tensors_in([getattr(leaf, field.name) for field in fields(leaf)])
    return tensors
