"""The record of one step: the ATen calls that ran, and the storages that they read and wrote.

A tensor argument is a `View` of a storage, so that views need no calls: ops pass storages.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch.utils._pytree import tree_leaves

from placeto_graphs import FREE_TYPE, Phase, TokenCache

UPDATE_TYPE = "placeto.update"
BARRIER_TYPE = "placeto.barrier"
GRADIENT = ".grad"  # ends the names of gradients

Updates = Literal["after-backward", "as-ready"]
UPDATES: tuple[Updates, ...] = get_args(Updates)


class View(NamedTuple):
    """A tensor as a strided view of a storage."""

    storage: int  # index into `Trace.storage_bytes`
    dtype: torch.dtype
    # Sizes and strides, in elements.
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # offset of its first element, in elements
    # True if it shows the conjugate or the negative of the stored values, as lazy views do.
    is_conjugated: bool = False
    is_negated: bool = False

    @property
    def num_bytes(self) -> int:
        """Number of bytes of memory that it shows; those that it shows several times count once."""
        count, reach = 1, 1
        for size, stride in zip(self.size, self.stride, strict=True):
            count *= size if stride or not size else 1
            reach += (size - 1) * stride
        return self.dtype.itemsize * min(count, max(reach, 0))


def whole_storage(storage: int, num_bytes: int) -> View:
    """Return a tensor of all bytes of a storage."""
    return View(storage, torch.uint8, (num_bytes,), (1,), 0)


@dataclass(slots=True)
class Placeholder:
    """An op that holds what is there before: weights, a buffer, an input. It computes nothing."""

    # Such as ``"layer.0.weight"`` and ``"layer.0"``.
    name: str
    scope: str
    op_type: str  # ``"parameter"``, ``"buffer"`` or ``"input"``
    # Tensors that it holds, by name, in one storage. Tied tensors have several names, and tensors
    # that overlap are parts of it.
    tensors: dict[str, View]
    # The tensors that it stands for, by name, as they were given to `capture`.
    values: dict[str, torch.Tensor]
    # State of the optimizer for it, by name (``"layer.0.weight.exp_avg"``).
    state: dict[str, View] = field(default_factory=dict)
    belongs_to: int | None = None  # of a gradient that is left of the step before: its weight's op

    flops: ClassVar[int] = 0
    bytes_accessed: ClassVar[int] = 0
    workspace_bytes: ClassVar[int] = 0
    update: ClassVar[int] = 0
    shares_launch: ClassVar[bool] = False
    reads: ClassVar[tuple[int, ...]] = ()
    writes: ClassVar[tuple[int, ...]] = ()
    merged_calls: "ClassVar[tuple[Call, ...]]" = ()
    single_calls: "ClassVar[tuple[Call, ...]]" = ()

    @property
    def phase(self) -> Phase:
        """The phase; gradients are of the update before, so that no micro-batch has its own."""
        return Phase.FORWARD if self.belongs_to is None else Phase.UPDATE

    @property
    def is_resident(self) -> bool:
        """Whether its storages stay where they are from step to step."""
        return self.op_type != "input"

    @property
    def creates(self) -> tuple[int, ...]:
        """The storages that go when nothing refers to them any more, as of a gradient."""
        return () if self.is_resident or self.belongs_to is None else self.storages

    @property
    def storages(self) -> tuple[int, ...]:
        """Its storages, the one of its tensors first."""
        views = (*self.tensors.values(), *self.state.values())
        return tuple(dict.fromkeys(view.storage for view in views))


@dataclass(slots=True)
class Call:
    """An ATen op that ran, or one that computes nothing and says only what comes first."""

    function: Any  # function that was called; None for a barrier or a free
    # Its arguments; tensors are replaced by their `View`.
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[View | None, ...] = ()  # the tensors that it returned, flattened
    # Storages: those that it reads, those that existed before and that it changes in place (which
    # are not among the first), and those that it makes.
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    creates: tuple[int, ...] = ()
    scope: str = ""  # path of the module that it belongs to
    phase: Phase = Phase.FORWARD
    # As `placeto_capture.tracing.work` defines them.
    flops: int = 0
    bytes_accessed: int = 0
    # Index of the op that it has to share a device with: the forward op of a gradient op, the
    # parameter of an update op.
    belongs_to: int | None = None
    # Index of its draw of random numbers; one that was drawn before has its index again, as where
    # activations are computed again. None for a call that draws none.
    rng_index: int | None = None
    # The ops that it stands for, one after the other, where it is the whole update of a weight.
    merged_calls: "tuple[Call, ...]" = ()
    # Number of the call of an optimizer's ``step`` that it is a part of, from 1; below 0 for ops
    # of updates before or after these, 0 for others.
    update: int = 0
    workspace_bytes: int = 0  # the most bytes that are there only between these parts
    # Whether it is launched with the calls of an update before and behind it: those of functions of
    # lists of tensors, such as `torch._foreach_add_`, and all on a processor.
    shares_launch: bool = False
    # Ops that come before the node of autograd that has run it, see `BackwardPasses`. A free waits
    # for the last op during which its storages are held.
    waits_for: tuple[int, ...] = ()

    @property
    def is_barrier(self) -> bool:
        """Whether it is a barrier behind a backward pass."""
        return self.function is None and not self.reads

    @property
    def is_free(self) -> bool:
        """Whether it marks until when a storage is held that nothing reads any more."""
        return self.function is None and bool(self.reads)

    @property
    def op_type(self) -> str:
        """Such as ``"aten.mm"``: the name of the function without the overload."""
        if self.function is None:
            return FREE_TYPE if self.is_free else BARRIER_TYPE
        return UPDATE_TYPE if self.merged_calls else str(self.function.overloadpacket)

    @property
    def single_calls(self) -> "tuple[Call, ...]":
        """The ops that it stands for, or it alone; none for one that only waits."""
        return () if self.function is None else self.merged_calls or (self,)


Op = Placeholder | Call


@dataclass(frozen=True)
class Trace:
    """One step: its ops in the order in which they ran."""

    ops: list[Op]  # the index of an op here is its index in the `OpGraph`
    storage_bytes: Sequence[int]  # the size of each storage
    # The loss (``"loss"``) and the gradients (``"layer.0.weight.grad"``); of an inference step the
    # output tensors (``"output.0"``).
    results: dict[str, View]
    # Storages that stay until the end of the step: of inputs, outputs, loss, gradients, and what
    # else the step refers to.
    held_storages: frozenset[int] = frozenset()
    # Number of ops that had run when nothing referred to a storage any more.
    deaths: Mapping[int, int] = field(default_factory=dict)
    # Updates (`Call.update`) that are one kernel, which keeps what is between its parts.
    fused: frozenset[int] = frozenset()
    # As for `capture`. Where updates run as soon as they can, an op waits for tensors alone.
    updates: Updates = "after-backward"
    # Bytes of storages of weights that are not held in the bytes of their dtype.
    held_bytes: Mapping[int, int] = field(default_factory=dict)
    cache: TokenCache | None = None  # of earlier tokens, as the caller describes it

    def bytes_before(self, storages: Iterable[int]) -> int:
        """Return the bytes of storages before the step: of weights those that they are held in."""
        return sum(self.held_bytes.get(s, self.storage_bytes[s]) for s in storages)

    @property
    def placeholders(self) -> list[Placeholder]:
        """The ops that hold what is there before the step."""
        return [op for op in self.ops if isinstance(op, Placeholder)]

    @property
    def calls(self) -> list[Call]:
        """The ops that compute."""
        return [op for op in self.ops if isinstance(op, Call)]


def view_in(tensor: torch.Tensor, storage: int) -> View:
    """Return how a tensor looks at a storage."""
    return View(
        storage,
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def tensor_leaves(value: Any) -> list[torch.Tensor | None]:
    """Return the tensors of what an op returned, and None for what is no tensor."""
    return [leaf if isinstance(leaf, torch.Tensor) else None for leaf in tree_leaves(value)]


def views_in(value: Any) -> list[View]:
    """Return the views in the arguments of a call."""
    leaves = tree_leaves(value, is_leaf=lambda node: isinstance(node, View))
    return [leaf for leaf in leaves if isinstance(leaf, View)]
