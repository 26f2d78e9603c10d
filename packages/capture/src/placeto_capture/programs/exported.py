"""Exported programs (``.pt2``), read without `torch.export.load`.

That function unpickles (weights, constants, example inputs) and evaluates expressions of sizes as
Python. Here the description is decoded as data, and its ops are looked up among those of ATen; what
else a file may hold is not opened.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import torch

from placeto_capture.errors import CaptureError
from placeto_capture.programs.exported_archive import ProgramArchive, dtype_of, sizes_of
from placeto_capture.programs.exported_calls import calls_of
from placeto_capture.programs.exported_schema import TensorMeta
from placeto_capture.programs.module_tree import ModuleTree
from placeto_capture.programs.program_module import ProgramModule, ProgramStep

TENSORS = {
    "parameter": "parameter_name",
    "buffer": "buffer_name",
    "tensor_constant": "tensor_constant_name",
}


def exported_step(path: str | os.PathLike[str], *, batch_size: int | None = None) -> ProgramStep:
    """Build a training step of an exported program.

    It does what the module did when it was exported, in training mode if it was in that. Its
    parameters are on the meta device; its buffers have the values of the file.

    Parameters
    ----------
    path
        The file that `torch.export.save` wrote.
    batch_size
        The first dimension of its first input, if that was left open on export.

    Raises
    ------
    CaptureError
        When it is damaged, or names anything but ops of ATen on tensors.

    Examples
    --------
    >>> import tempfile
    >>> program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
    >>> with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
    ...     torch.export.save(program, file.name)
    ...     step = exported_step(file.name)
    >>> [name for name, _ in step.model.named_parameters()], step.example_inputs[0].shape
    (['weight', 'bias'], torch.Size([3, 4]))
    """
    archive = ProgramArchive(path)
    try:
        return _Reader(archive, batch_size).step()
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise CaptureError(
            f"{path}: expected an exported program of a known version, got "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        archive.close()


class _Reader:
    """Makes a module of an archive."""

    def __init__(self, archive: ProgramArchive, batch_size: int | None) -> None:
        self._path = archive.path
        self._module = archive.program.graph_module
        self._metas = self._module.graph.tensor_values
        self._values = archive.values(
            {
                described[TENSORS[kind]]
                for spec in self._module.signature.input_specs
                for kind, described in spec.items()
                if kind in {"buffer", "tensor_constant"}
            }
        )
        self._batch_size = batch_size
        self._tree = ModuleTree(str(archive.path))
        self._placed: dict[str, str] = {}  # names of values: names of tensors
        self._given: list[str] = []  # names of values that are inputs
        self._inputs: list[Any] = []

    def step(self) -> ProgramStep:
        for spec in self._module.signature.input_specs:
            ((kind, described),) = spec.items()
            self._take(kind, described)
        calls = calls_of(str(self._path), self._module.graph, self._tree)
        outputs, written = self._outputs()
        model = ProgramModule(self._tree.root, self._given, self._placed, calls, outputs, written)
        if self._batch_size is not None:
            raise CaptureError(
                f"batch_size: expected none for {self._path}, whose inputs have fixed sizes"
            )
        keys = _keyword_names(self._module.nesting.in_spec)
        if keys is not None and len(keys) == len(self._inputs):
            model.call_by(keys)
            return ProgramStep(model.train(), dict(zip(keys, self._inputs, strict=True)))
        return ProgramStep(model.train(), tuple(self._inputs))

    def _take(self, kind: str, described: dict[str, Any]) -> None:
        if kind == "constant_input":
            ((_, value),) = described["value"].items()
            self._given.append(described["name"])
            self._inputs.append(value)
        elif kind == "user_input":
            ((what, argument),) = described["arg"].items()
            if what == "as_none":
                self._given.append("")
                self._inputs.append(None)
                return
            if what != "as_tensor":
                raise CaptureError(f"{self._path}: expected inputs that are tensors, got {what}")
            self._given.append(argument["name"])
            self._inputs.append(self._input(argument["name"]))
        elif kind in TENSORS:
            name = described[TENSORS[kind]]
            value = described["arg"]["name"]
            self._placed[value] = name
            self._tree.add_tensor(name, self._tensor(name, value, kind))
        else:
            raise CaptureError(f"{self._path}: expected inputs that are tensors, got {kind}")

    def _tensor(self, name: str, value: str, kind: str) -> torch.Tensor:
        if kind == "parameter":
            tensor = self._empty(self._metas[value])
            return torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
        known = self._values.get(name)
        return self._empty(self._metas[value]) if known is None else known

    def _input(self, value: str) -> torch.Tensor:
        meta = self._metas[value]
        expression = meta.sizes[0].get("as_expr") if meta.sizes else None
        if self._batch_size is None or expression is None:
            return self._empty(meta)
        wanted, self._batch_size = self._batch_size, None
        return self._empty(meta, {expression["expr_str"]: wanted})

    def _empty(self, meta: TensorMeta, known: dict[str, int] | None = None) -> torch.Tensor:
        size = [
            (known or {}).get(str((entry.get("as_expr") or {}).get("expr_str")), number)
            for entry, number in zip(meta.sizes, sizes_of(meta.sizes), strict=True)
        ]
        stride = sizes_of(meta.strides)
        if min((*size, *stride), default=0) < 0 or len(size) != len(stride):
            raise CaptureError(f"{self._path}: expected sizes that are known, got {meta.sizes}")
        dtype = dtype_of(self._path, meta)
        if known:  # strides follow from the sizes
            return torch.empty(size, dtype=dtype, device="meta")
        return torch.empty_strided(size, stride, dtype=dtype, device="meta")

    def _outputs(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return what the outputs are called with their values, and buffers with what they get."""
        outputs, written = [], []
        for spec in self._module.signature.output_specs:
            ((kind, described),) = spec.items()
            if kind == "buffer_mutation":
                written.append((described["buffer_name"], described["arg"]["name"]))
                continue
            if kind not in {"user_output", "loss_output"}:
                raise CaptureError(f"{self._path}: expected outputs of a model, got {kind}")
            arg = described["arg"]
            argument = arg if "name" in arg else arg.get("as_tensor")
            if argument is not None:
                outputs.append((str(kind), argument["name"]))
        return self._named(outputs), written

    def _named(self, outputs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Call outputs as the module did, if it gave a mapping."""
        keys = _keys(_parsed(self._module.nesting.out_spec))
        if keys is not None and len(keys) == len(outputs):
            return [(key, value) for key, (_, value) in zip(keys, outputs, strict=True)]
        return [
            ("loss" if kind == "loss_output" else f"output.{number}", value)
            for number, (kind, value) in enumerate(outputs)
        ]


def _parsed(text: str) -> Any:
    """Return how something is nested; None if that is not known."""
    try:
        return json.loads(text)[1]
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        return None


def _keyword_names(text: str) -> Sequence[str] | None:
    """Return the names of arguments that are all given by keyword, if they are."""
    spec = _parsed(text)
    parts = spec.get("children_spec") if isinstance(spec, dict) else None
    if not isinstance(parts, list) or len(parts) != 2 or not isinstance(parts[0], dict):
        return None
    return _keys(parts[1]) if not parts[0].get("children_spec") else None


def _keys(spec: Any) -> Sequence[str] | None:
    """Return the keys of the mapping of tensors that a description is of, if it is."""
    try:
        keys, children = spec["context"], spec["children_spec"]
        keys = json.loads(keys) if isinstance(keys, str) else keys
        leaves = all(not child.get("children_spec") for child in children)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    named = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    return keys if named and leaves and len(children) == len(keys) else None
