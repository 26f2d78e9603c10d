"""What is recorded of one step: the ATen calls that ran, and the storages that they read and wrote.

A tensor argument is kept as a `TensorRef`: which storage it looks at, and how. Views need no calls
of their own then, and a storage, not a tensor, is what ops hand to each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from placeto_graphs import Phase

UPDATE_TYPE = "placeto.update"


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as a strided look at a storage.

    Attributes
    ----------
    storage : int
        Index into `Trace.storage_bytes`.
    dtype : torch.dtype
        Of its elements.
    size, stride : tuples of int
        In elements.
    offset : int
        Of its first element, in elements.
    is_conjugated, is_negated : bool
        Whether it shows the conjugate or the negative of what is stored, as lazy views do.
    """

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_conjugated: bool = False
    is_negated: bool = False

    @property
    def num_elements(self) -> int:
        """How many elements it shows; those of an expanded dimension count each time."""
        count = 1
        for size in self.size:
            count *= size
        return count

    @property
    def num_bytes(self) -> int:
        """How many bytes of memory it shows; those of an expanded dimension count once."""
        count = self.dtype.itemsize
        for size, stride in zip(self.size, self.stride, strict=True):
            if stride or not size:
                count *= size
        return count


@dataclass(slots=True)
class Source:
    """An op that holds what is there before the step: weights, a buffer, or an input.

    Attributes
    ----------
    name, scope : str
        Such as ``"layer.0.weight"`` and ``"layer.0"``.
    op_type : str
        ``"parameter"``, ``"buffer"`` or ``"input"``.
    tensors : dict of str to `TensorRef`
        What it holds, by name, in one storage. Tied tensors have several names, and tensors that
        overlap are parts of it.
    state : dict of str to `TensorRef`
        What the optimizer keeps for it, by name (``"layer.0.weight.exp_avg"``).
    values : dict of str to `torch.Tensor`
        The tensors that it stands for, by name, as they were given to `capture`.
    """

    name: str
    scope: str
    op_type: str
    tensors: dict[str, TensorRef]
    values: dict[str, torch.Tensor]
    state: dict[str, TensorRef] = field(default_factory=dict)

    @property
    def is_resident(self) -> bool:
        """Whether its storages stay where they are from step to step."""
        return self.op_type != "input"

    @property
    def storages(self) -> tuple[int, ...]:
        """Its storages, the one of its tensors first."""
        refs = (*self.tensors.values(), *self.state.values())
        return tuple(dict.fromkeys(ref.storage for ref in refs))


@dataclass(slots=True)
class Call:
    """An ATen op that ran.

    Attributes
    ----------
    function : torch._ops.OpOverload
        What was called.
    arguments, keywords : tuple, dict
        What it was called with; tensors are replaced by their `TensorRef`.
    outputs : tuple of `TensorRef` or None
        The tensors that it returned, flattened.
    reads, writes, creates : tuples of int
        Storages: those that it reads, those that existed before and that it changes in place (which
        are not among the first), and those that it makes.
    scope : str
        Path of the module that it belongs to.
    phase : Phase
        Of the training step.
    flops, bytes_accessed : int
        As `placeto_capture.tracing.counting` defines them.
    belongs_to : int or None
        Index of the op that it has to share a device with: the forward op of a gradient op, the
        parameter of an update op.
    draw : int or None
        Which of the draws of random numbers it is; one that was drawn before has its number again,
        as where activations are computed again. None for what draws none.
    parts : tuple of `Call`
        The ops that it stands for, one after the other, where it is the whole update of a weight.
    """

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    outputs: tuple[TensorRef | None, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    creates: tuple[int, ...]
    scope: str
    phase: Phase
    flops: int
    bytes_accessed: int
    belongs_to: int | None
    draw: int | None = None
    parts: "tuple[Call, ...]" = ()

    @property
    def op_type(self) -> str:
        """Such as ``"aten.mm"``: the name of the function without the overload."""
        return UPDATE_TYPE if self.parts else str(self.function.overloadpacket)


@dataclass(frozen=True)
class Trace:
    """One step: its ops in the order in which they ran.

    Attributes
    ----------
    ops : list of `Source` or `Call`
        The index of an op here is its index in the `OpGraph`.
    storage_bytes : sequence of int, or mapping
        The size of each storage.
    results : dict of str to `TensorRef`
        The loss (``"loss"``) and the gradients (``"layer.0.weight.grad"``); of an inference step
        the output tensors (``"output.0"``).
    """

    ops: list[Source | Call]
    storage_bytes: Sequence[int] | Mapping[int, int]
    results: dict[str, TensorRef]

    @property
    def sources(self) -> list[Source]:
        """The ops that hold what is there before the step."""
        return [op for op in self.ops if isinstance(op, Source)]

    @property
    def calls(self) -> list[Call]:
        """The ops that compute."""
        return [op for op in self.ops if isinstance(op, Call)]


def tensor_leaves(value: Any) -> Iterator[torch.Tensor | None]:
    """Yield the tensors of what an op returned, and None for what is no tensor."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from tensor_leaves(item)
    else:
        yield value if isinstance(value, torch.Tensor) else None


def references(value: Any) -> Iterator[TensorRef]:
    """Yield the references to tensors in the arguments of a call."""
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, dict):
        yield from references(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from references(item)
