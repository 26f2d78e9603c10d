"""A module that runs the calls of a program."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from placeto_capture.programs.module_tree import Scope


class ProgramStep(NamedTuple):
    """A model that was read from a file, and the inputs of a step of it.

    It is the tuple that a factory of a user's own returns, too.

    Attributes
    ----------
    model
        In training mode.
    example_inputs
        Its positional arguments as a tuple, or its keyword arguments as a mapping.
    """

    model: nn.Module
    example_inputs: Any


@dataclass(frozen=True)
class Value:
    """What the program computes, by name."""

    name: str


@dataclass(frozen=True)
class Call:
    """A call of a function.

    Attributes
    ----------
    scope
        In whose name it runs.
    function
        What is called.
    arguments, keywords
        With what: plain values, and `Value` for what the program computes.
    results
        The names of what it gives: one, or several, or one list of them.
    has_gradients
        Whether gradients flow through it.
    """

    scope: Scope
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    results: list[Any]
    has_gradients: bool = True

    def with_gradients(self, enabled: bool) -> "Call":
        """Return the same call, without gradients unless they are enabled."""
        return replace(self, has_gradients=self.has_gradients and enabled)


class ProgramModule(nn.Module):
    """Runs the calls of a program in order.

    Parameters
    ----------
    tree
        What holds the tensors of the program.
    inputs
        The names of its positional arguments.
    tensors
        For the names of other values those of their tensors.
    calls
        What runs.
    outputs
        What the outputs are called, and the values that they are.
    written
        Buffers that get a value at the end.
    """

    def __init__(
        self,
        tree: Scope,
        inputs: Sequence[str],
        tensors: Mapping[str, str],
        calls: Sequence[Call],
        outputs: Sequence[tuple[str, str]],
        written: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__()
        # As if they were its own: scopes and names are those of the module that was written.
        self._modules.update(tree._modules)
        self._parameters.update(tree._parameters)
        self._buffers.update(tree._buffers)
        self._held = (tree,)  # in a tuple, as it is no module within this one
        self._inputs = list(inputs)
        self._tensors = dict(tensors)
        self._calls = list(calls)
        self._outputs = list(outputs)
        self._written = list(written)
        self._keys: list[str] = []

    def call_by(self, keys: Sequence[str]) -> None:
        """Take the inputs by keyword from now on, in the order of the keys."""
        self._keys = list(keys)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output, or several by name."""
        (tree,) = self._held
        given = [named[key] for key in self._keys] if named else inputs
        values: dict[str, Any] = dict(zip(self._inputs, given, strict=True))
        for value, name in self._tensors.items():
            values[value] = tree.tensor(name)
        for call in self._calls:
            _run(call, tree, values)
        with torch.no_grad():
            for name, value in self._written:
                tree.tensor(name).copy_(values[value])
        found = {name: values[value] for name, value in self._outputs}
        return next(iter(found.values())) if len(found) == 1 and "loss" not in found else found


def _run(call: Call, tree: Scope, values: dict[str, Any]) -> None:
    arguments = [_filled(argument, values) for argument in call.arguments]
    keywords = {key: _filled(value, values) for key, value in call.keywords.items()}
    with nullcontext() if call.has_gradients else torch.no_grad():
        if call.scope is tree:
            result = call.function(*arguments, **keywords)
        else:
            result = call.scope(call.function, *arguments, **keywords)
    if len(call.results) == 1 and not isinstance(call.results[0], list):
        values[call.results[0]] = result
        return
    names = call.results[0] if len(call.results) == 1 else call.results
    values.update(zip(names, result, strict=True))


def _filled(argument: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(argument, Value):
        return values[argument.name]
    if isinstance(argument, list):
        return [_filled(item, values) for item in argument]
    return argument
