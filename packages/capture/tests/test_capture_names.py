"""The ops of layers and losses of torch.nn are those that PyTorch runs: as many of each name."""

import inspect
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import activation, batchnorm, instancenorm, loss, normalization
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from placeto_capture import capture
from placeto_graphs import Phase

SGD = torch.optim.SGD
WIDTH = 6
IMAGES = torch.rand(2, 4, WIDTH, WIDTH)
SCORES, CLASSES = torch.rand(2, 4), torch.tensor([1, 3])
# What a module is made with, and is called with, where that is not nothing and images or scores.
MADE_WITH: dict[str, tuple[Any, ...]] = {
    "Threshold": (0.1, 20.0),
    "MultiheadAttention": (WIDTH, 2),
    "LocalResponseNorm": (2,),
    "CrossMapLRN2d": (2,),
    "GroupNorm": (2, 4),
    "LinearCrossEntropyLoss": (4, 4),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), (WIDTH,)),
    **dict.fromkeys(("Softmin", "Softmax", "LogSoftmax"), (-1,)),
    **{f"{kind}Norm{dim}d": (4,) for kind in ("Batch", "Instance") for dim in (1, 2, 3)},
}
CALLED_WITH: dict[str, tuple[Any, ...]] = {
    "MultiheadAttention": (IMAGES[0],) * 3,
    **{f"{kind}Norm1d": (IMAGES[..., 0],) for kind in ("Batch", "Instance")},
    **{f"{kind}Norm3d": (IMAGES[..., None],) for kind in ("Batch", "Instance")},
    **dict.fromkeys(
        ("NLLLoss", "CrossEntropyLoss", "MultiMarginLoss", "LinearCrossEntropyLoss"),
        (SCORES, CLASSES),
    ),
    "MultiLabelMarginLoss": (SCORES, SCORES.long()),
    "CosineEmbeddingLoss": (SCORES, SCORES, CLASSES),
    "MarginRankingLoss": (SCORES, SCORES, SCORES),
    **dict.fromkeys(("TripletMarginLoss", "TripletMarginWithDistanceLoss"), (SCORES,) * 3),
    "CTCLoss": (SCORES.repeat(5, 1), CLASSES, torch.tensor(10), torch.tensor(2)),
}
# Lazy ones are others as soon as they are called; one needs several processes, and one is another
# with a warning. A variance is looked at, which capture refuses.
LEFT_OUT = "Lazy", "Sync", "NLLLoss2d", "GaussianNLLLoss"
MODULES = [
    (name, in_place)
    for file in (activation, batchnorm, instancenorm, loss, normalization)
    for name in file.__all__
    if hasattr(nn, name) and not name.startswith(LEFT_OUT)
    for in_place in (False, True)
    if not in_place or "inplace" in inspect.signature(getattr(nn, name)).parameters
]


class Scaled(nn.Module):
    """A module whose first input is learned."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.scale, self.module = nn.Parameter(torch.ones(())), module

    def forward(self, first: torch.Tensor, *others: Any) -> Any:
        return self.module(first * self.scale, *others)


class Names(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of ops that make or change storages, but for memory without values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        known = {_storage(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        is_new = any(_storage(leaf) not in known for leaf in made)
        is_changed = func._schema.is_mutable and torch.Tag.inplace_view not in func.tags
        if is_changed or (is_new and "empty" not in func._opname):
            self.names[_plain(str(func.overloadpacket))] += 1
        return result


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _plain(name: str) -> str:
    """Return a name without what says that it is in place: autograd hides that from a mode."""
    return name.rstrip("_")


def total(outputs: Any) -> torch.Tensor:
    first, *others = (each.mean() for each in pytree.tree_leaves(outputs))
    return sum(others, start=first)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize(("name", "in_place"), MODULES)
def test_layers_and_losses_run_the_ops_that_pytorch_runs(name: str, in_place: bool) -> None:
    is_loss = name in loss.__all__
    inputs = CALLED_WITH.get(name, (SCORES, SCORES) if is_loss else (IMAGES,))
    given = {"inplace": True} if in_place else {}
    model = Scaled(getattr(nn, name)(*MADE_WITH.get(name, ()), **given))
    for mode in ("training", "inference"):
        graph = capture(model, inputs, mode=mode, target="cpu", loss_fn=total, optimizer=SGD)
        with Names() as live:
            if mode == "training":
                total(model.train()(*inputs)).backward()  # type: ignore[no-untyped-call]
            else:
                with torch.no_grad():
                    model.eval()(*inputs)
        captured = Counter(
            _plain(kind)
            for kind, phase in zip(graph.op_types, graph.phases, strict=True)
            if phase != Phase.UPDATE and kind.startswith("aten.")
        )
        assert captured == live.names
