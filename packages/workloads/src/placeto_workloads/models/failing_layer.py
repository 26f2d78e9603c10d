"""Which layer of a model cannot take what it gets."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn


def failing_layer(model: nn.Module, inputs: tuple[Tensor, ...]) -> str | None:
    """Run a model forward and say which layer failed, or None if all went well.

    Parameters
    ----------
    model
        On any device; on the meta device nothing is computed but shapes.
    inputs
        Its positional arguments.
    """
    running: list[str] = []
    with ExitStack() as hooks, torch.no_grad():
        for name, module in model.named_modules():
            for handle in (
                module.register_forward_pre_hook(_entering(name, running)),
                module.register_forward_hook(_leaving(running)),
            ):
                hooks.callback(handle.remove)
        try:
            model(*inputs)
        except (RuntimeError, ValueError) as error:
            return f"layer {running[-1]}: {error}"
    return None


def _entering(name: str, running: list[str]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def enter(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        shapes = [
            "x".join(map(str, argument.shape)) or "scalar"
            for argument in arguments
            if isinstance(argument, Tensor)
        ]
        layer = repr(name) if name else "that holds all others"
        running.append(f"{layer} ({type(module).__name__}) on {', '.join(shapes) or 'its inputs'}")

    return enter


def _leaving(running: list[str]) -> Callable[..., None]:
    def leave(*_: object) -> None:
        running.pop()

    return leave
