"""Modules that hold the tensors of a program, and in whose names its ops run."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from placeto_capture.errors import CaptureError

PATH = re.compile(r"\w+(\.\w+)*")
DEEPEST = 100


class ModuleTree:
    """Modules by their paths, made as they are asked for.

    Parameters
    ----------
    owner
        What the names come from, for error messages.

    Examples
    --------
    >>> tree = ModuleTree("model.pt2")
    >>> tree.add_tensor("layer.weight", nn.Parameter(torch.ones(2)))
    >>> [name for name, _ in tree.root.named_parameters()]
    ['layer.weight']
    """

    def __init__(self, owner: str) -> None:
        self.root = Scope()
        self._owner = owner

    def module(self, path: str) -> "Scope":
        """Return the module at a path; the root if it is none."""
        found = self.root
        if not PATH.fullmatch(path) or path.count(".") > DEEPEST:
            return found
        for name in path.split("."):
            child = found._modules.get(name)
            if not isinstance(child, Scope):
                child = found._modules[name] = Scope()
            found = child
        return found

    def add_tensor(self, name: str, tensor: torch.Tensor) -> None:
        """Add a parameter or a buffer."""
        if not PATH.fullmatch(name) or name.count(".") > DEEPEST:
            raise CaptureError(f"{self._owner}: expected a name of a tensor, got {name!r}")
        path, _, last = name.rpartition(".")
        module = self.module(path)
        # Not setattr: a name may be that of anything that modules have.
        if isinstance(tensor, nn.Parameter):
            module._parameters[last] = tensor
        else:
            module._buffers[last] = tensor


class Scope(nn.Module):
    """A module that runs what it is given."""

    def forward(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Call a function."""
        return function(*args, **keywords)

    def tensor(self, name: str) -> torch.Tensor:
        """Return the parameter or buffer of a name within this module."""
        path, _, last = name.rpartition(".")
        module: nn.Module = self
        for part in path.split(".") if path else ():
            child = module._modules[part]
            assert child is not None  # noqa: S101 (trees have no gaps)
            module = child
        found: torch.Tensor | None = module._parameters.get(last)
        if found is None:
            found = module._buffers[last]
        assert found is not None  # noqa: S101 (both come from a tree)
        return found
