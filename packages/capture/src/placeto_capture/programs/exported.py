"""Exported programs (``.pt2``), read with `torch.export.load`, which can run code of the file."""

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch._export.serde.serialize
import torch.export
from torch import nn

from placeto_capture.errors import CaptureError
from placeto_capture.programs.step import ProgramStep
from placeto_graphs import error_line


def exported_step(path: str | os.PathLike[str], *, trust: bool) -> ProgramStep:
    """Build a step of an exported program, with its weights and example inputs, on the CPU.

    Its modules (`torch.export.unflatten`) do what they did on export, such as to drop numbers.
    """
    with open(path, "rb") as file:
        if not trust:
            raise CaptureError(
                f"{path}: loading an exported program can run code that is in the file; if you "
                "trust where it comes from, --trust (or trust=True) loads it"
            )
        logged: list[BaseException] = []
        try:
            with _loading_to_cpu(logged):
                program = torch.export.load(file)
                model = torch.export.unflatten(program)
        except Exception as error:
            reason = re.split(r"(?<=\w)\. ", error_line([error, *logged][-1]))[0]
            raise CaptureError(f"{path}: expected an exported program, got {reason}") from error
    if program.example_inputs is None:
        raise CaptureError(f"{path}: expected a program with its example inputs, got one without")
    for module in model.modules():
        graph: Any = getattr(module, "graph", None)
        for node in list(getattr(graph, "nodes", ())):
            node.meta.clear()  # fake tensors among it cannot be copied with the model
            if node.target is torch.ops.higher_order.cond:
                node.target = _cond
            elif node.target is torch.ops.aten._assert_tensor_metadata.default:
                graph.erase_node(node)  # autocast of a GPU gives other dtypes than that of a CPU
    model.register_forward_hook(_without_interpreter, always_call=True)
    arguments, keywords = program.example_inputs
    if arguments and keywords:
        count, names = len(arguments), list(keywords)
        model.register_forward_pre_hook(
            lambda _module, args, _: (args[:count], dict(zip(names, args[count:], strict=True))),
            with_kwargs=True,
        )
        return ProgramStep(model, (*arguments, *keywords.values()))
    return ProgramStep(model, keywords or arguments)


@contextmanager
def _loading_to_cpu(logged: list[BaseException]) -> Iterator[None]:
    """Let PyTorch read a program of a missing device; errors that it logs go into a list."""

    def keep(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        logged.extend([error] if error else [])
        return False

    serialize = torch._export.serde.serialize
    archive = getattr(getattr(torch.export, "pt2_archive", None), "_package", None)
    read = serialize.deserialize_device

    def device(serialized: Any) -> torch.device:
        saved_device = read(serialized)
        return saved_device if saved_device.type == "meta" else torch.device("cpu")

    with ExitStack() as stack, warnings.catch_warnings(action="ignore"):
        for log in (logging.getLogger("torch.export"), serialize.log):
            log.addFilter(keep)
            stack.callback(log.removeFilter, keep)
        load = partial(torch.load, map_location="cpu")
        stack.enter_context(mock.patch.object(torch, "load", load))
        for module in (serialize, archive):  # newer versions of PyTorch have the latter
            if hasattr(module, "deserialize_device"):
                stack.enter_context(mock.patch.object(module, "deserialize_device", device))
        yield


def _without_interpreter(_module: nn.Module, _arguments: Any, _result: Any) -> None:
    """Leave out of an error what the interpreter of the program adds: the node that it was at."""
    error = sys.exc_info()[1]
    if error is not None and error.args:
        error.args = (str(error.args[0]).partition("\n\nWhile executing %")[0], *error.args[1:])


def _cond(*args: Any, **keywords: Any) -> Any:
    """Run `torch.cond` as it is when it is called: capture replaces it."""
    return torch.cond(*args, **keywords)
