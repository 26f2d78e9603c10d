"""Small steps of training loops with variables, lists and optimizers of their own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from memory_steps import SGD, perceptron, squares


@dataclass(frozen=True)
class Loop:
    """A step that is called with a batch, and what it works with."""

    step: Callable[..., object]
    modules: Sequence[nn.Module]
    batch: tuple[Tensor, ...]
    optimizers: Sequence[torch.optim.Optimizer] = ()


def layers(*sizes: int) -> nn.Module:
    return perceptron(*sizes, rows=1)[0]


def output_in_a_variable() -> Loop:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2_000))
    optimizer = SGD(model.parameters())

    def step(batch: Tensor, target: Tensor) -> None:
        outputs = model(batch)
        loss = F.cross_entropy(outputs, target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Loop(step, [model], (torch.randn(512, 32), torch.randint(2_000, (512,))), [optimizer])


def features_of_hooks() -> Loop:
    model = nn.Sequential(layers(*[64] * 9).requires_grad_(False), nn.Linear(64, 8))
    features: list[Tensor] = []
    for layer in model[0].children():
        layer.register_forward_hook(lambda _module, _inputs, output: features.append(output))

    def step(batch: Tensor) -> None:
        squares(model(batch), torch.zeros(())).backward()  # type: ignore[no-untyped-call]
        features.clear()

    return Loop(step, [model], (torch.randn(1024, 64),))


def accumulation(passes: int) -> Loop:
    model = layers(*[64] * 9)
    optimizer = SGD(model.parameters())

    def step(*batches: Tensor) -> None:
        for batch in batches:
            F.cross_entropy(model(batch), batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Loop(step, [model], tuple(torch.randn(passes, 512, 64)), [optimizer])


def clearing(way: str) -> Loop:
    """Return one in which gradients of the step before are there in the forward pass."""
    model = layers(*[256] * 7)
    optimizer = SGD(model.parameters())
    if way == "buffers":
        for weight in model.parameters():
            weight.main_grad = torch.zeros_like(weight)  # type: ignore[attr-defined]

    def step(batch: Tensor) -> None:
        if way in ("zeros", "buffers"):
            optimizer.zero_grad(set_to_none=way == "buffers")
        loss = squares(model(batch), batch)
        if way == "between":
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for weight in model.parameters() if way == "buffers" else ():
            weight.main_grad.copy_(weight.grad)  # type: ignore[attr-defined]
            weight.grad = weight.main_grad  # type: ignore[attr-defined]
        optimizer.step()
        if way == "again":
            optimizer.zero_grad()
            squares(model(-batch), batch).backward()  # type: ignore[no-untyped-call]

    return Loop(step, [model], (torch.randn(256, 256),), [optimizer])


def by_hand() -> Loop:
    model = layers(*[256] * 7)

    def step(batch: Tensor) -> None:
        weights = [*model.parameters()]
        gradients = torch.autograd.grad(squares(model(batch), batch), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(0.1 * gradient)

    return Loop(step, [model], (torch.randn(16, 256),))


def two_passes(retain: bool) -> Loop:
    """Return one with two backward passes of one graph, or with one that keeps it."""
    model = layers(*[64] * 9)
    optimizer = SGD(model.parameters())

    def step(batch: Tensor) -> None:
        outputs = model(batch)
        first, second = F.cross_entropy(outputs, batch), F.cross_entropy(-outputs, batch)
        first.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        if not retain:
            second.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Loop(step, [model], (torch.randn(1024, 64),), [optimizer])


class Preconditioned(torch.optim.Optimizer):
    """Keeps a matrix of each dimension of a weight, in a list."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if not state:
                state["factors"] = [torch.zeros(size, size) for size in weight.shape]
            rows_factor, columns_factor = state["factors"]
            rows_factor.addmm_(weight.grad, weight.grad.T)
            columns_factor.addmm_(weight.grad.T, weight.grad)
            weight.sub_(weight.grad)


def state_in_lists() -> Loop:
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(3)))
    optimizer = Preconditioned(model.parameters())

    def step(batch: Tensor) -> None:
        squares(model(batch), batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Loop(step, [model], (torch.randn(4, 256),), [optimizer])


LOOPS: dict[str, Callable[[], Loop]] = {
    "output in a variable": output_in_a_variable,
    "features of hooks": features_of_hooks,
    "accumulation over 8 passes": lambda: accumulation(8),
    "gradients that are zeros": lambda: clearing("zeros"),
    "gradients cleared in between": lambda: clearing("between"),
    "gradients never cleared": lambda: clearing("never"),
    "gradients in buffers": lambda: clearing("buffers"),
    "gradients cleared before another pass": lambda: clearing("again"),
    "updates by hand": by_hand,
    "two backward passes": lambda: two_passes(retain=False),
    "graph that is kept": lambda: two_passes(retain=True),
    "state in lists": state_in_lists,
}
