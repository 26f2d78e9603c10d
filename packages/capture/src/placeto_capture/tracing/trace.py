"""What is recorded of one step: the ATen calls that ran, and the storages that they read and wrote.

A tensor argument is kept as a `View` of a storage. Views need no calls of their own then, and a
storage, not a tensor, is what ops hand to each other. At the end `with_whole_updates` joins the ops
of each update, as fused optimizers and TensorFlow run it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from placeto_graphs import Phase

UPDATE_TYPE = "placeto.update"


@dataclass(frozen=True, slots=True)
class View:
    """A tensor as a strided view of a storage.

    Attributes
    ----------
    storage : int
        Index into `Trace.storage_bytes`.
    dtype : torch.dtype
        Dtype of its elements.
    size, stride : tuples of int
        Sizes and strides, in elements.
    offset : int
        Offset of its first element, in elements.
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
class Placeholder:
    """An op that holds what is there before the step: weights, a buffer, or an input.

    Attributes
    ----------
    name, scope : str
        Such as ``"layer.0.weight"`` and ``"layer.0"``.
    op_type : str
        ``"parameter"``, ``"buffer"`` or ``"input"``.
    tensors : dict of str to `View`
        Tensors that it holds, by name, in one storage. Tied tensors have several names, and
        tensors that overlap are parts of it.
    state : dict of str to `View`
        State of the optimizer for it, by name (``"layer.0.weight.exp_avg"``).
    values : dict of str to `torch.Tensor`
        The tensors that it stands for, by name, as they were given to `capture`.
    """

    name: str
    scope: str
    op_type: str
    tensors: dict[str, View]
    values: dict[str, torch.Tensor]
    state: dict[str, View] = field(default_factory=dict)

    @property
    def is_resident(self) -> bool:
        """Whether its storages stay where they are from step to step."""
        return self.op_type != "input"

    @property
    def storages(self) -> tuple[int, ...]:
        """Its storages, the one of its tensors first."""
        views = (*self.tensors.values(), *self.state.values())
        return tuple(dict.fromkeys(view.storage for view in views))


@dataclass(slots=True)
class Call:
    """An ATen op that ran.

    Attributes
    ----------
    function : torch._ops.OpOverload
        Function that was called.
    arguments, keywords : tuple, dict
        Its arguments; tensors are replaced by their `View`.
    outputs : tuple of `View` or None
        The tensors that it returned, flattened.
    reads, writes, creates : tuples of int
        Storages: those that it reads, those that existed before and that it changes in place (which
        are not among the first), and those that it makes.
    scope : str
        Path of the module that it belongs to.
    phase : Phase
        Phase of the training step.
    flops, bytes_accessed : int
        As `placeto_capture.tracing.functions` defines them.
    belongs_to : int or None
        Index of the op that it has to share a device with: the forward op of a gradient op, the
        parameter of an update op.
    rng_index : int or None
        Index of its draw of random numbers; one that was drawn before has its index again, as where
        activations are computed again. None for a call that draws none.
    parts : tuple of `Call`
        The ops that it stands for, one after the other, where it is the whole update of a weight.
    update : int
        Number of the call of an optimizer's ``step`` that it is a part of, from 1; 0 for others.
    """

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    outputs: tuple[View | None, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    creates: tuple[int, ...]
    scope: str
    phase: Phase
    flops: int
    bytes_accessed: int
    belongs_to: int | None
    rng_index: int | None = None
    parts: "tuple[Call, ...]" = ()
    update: int = 0

    @property
    def op_type(self) -> str:
        """Such as ``"aten.mm"``: the name of the function without the overload."""
        return UPDATE_TYPE if self.parts else str(self.function.overloadpacket)

    @property
    def single_calls(self) -> "tuple[Call, ...]":
        """The ops that it stands for, or it alone."""
        return self.parts or (self,)


@dataclass(frozen=True)
class Trace:
    """One step: its ops in the order in which they ran.

    Attributes
    ----------
    ops : list of `Placeholder` or `Call`
        The index of an op here is its index in the `OpGraph`.
    storage_bytes : sequence of int, or mapping
        The size of each storage.
    results : dict of str to `View`
        The loss (``"loss"``) and the gradients (``"layer.0.weight.grad"``); of an inference step
        the output tensors (``"output.0"``).
    """

    ops: list[Placeholder | Call]
    storage_bytes: Sequence[int] | Mapping[int, int]
    results: dict[str, View]

    @property
    def placeholders(self) -> list[Placeholder]:
        """The ops that hold what is there before the step."""
        return [op for op in self.ops if isinstance(op, Placeholder)]

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


def views_in(value: Any) -> Iterator[View]:
    """Yield the views in the arguments of a call."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, dict):
        yield from views_in(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from views_in(item)


def with_whole_updates(trace: Trace) -> Trace:
    """Return a trace in which the update of each weight is one op of type ``"placeto.update"``.

    It stands where the last of its ops stood, has the FLOPs of all of them, and reads and writes
    what was there before it, or is there after it, once: what is between them stays in registers.
    An update that is one op already stays, as does one that something else comes between.
    """
    merged = {ops[-1]: ops for ops in _updates(trace) if _is_free(trace, ops)}
    removed = {op for ops in merged.values() for op in ops[:-1]}
    kept = [op for op in range(len(trace.ops)) if op not in removed]
    place = {op: index for index, op in enumerate(kept)}
    users = _users(trace)
    ops: list[Placeholder | Call] = []
    for op in kept:
        made = trace.ops[op]
        if op in merged:
            made = _whole(trace, merged[op], users)
        if isinstance(made, Call) and made.belongs_to is not None:
            made = replace(made, belongs_to=place[made.belongs_to])
        ops.append(made)
    return replace(trace, ops=ops)


def _updates(trace: Trace) -> Iterable[list[int]]:
    """Return the ops of the update of each weight, and those whose results only they read."""
    owner: dict[int, int | None] = {}
    users: defaultdict[int, set[int | None]] = defaultdict(set)
    updates = [
        (op, call) for op, call in enumerate(trace.ops) if isinstance(call, Call) and call.update
    ]
    for op, call in reversed(updates):
        of_results = {user for storage in call.creates for user in users[storage]}
        owner[op] = call.belongs_to
        if call.belongs_to is None and not call.writes and len(of_results) == 1:
            (owner[op],) = of_results
        for storage in (*call.reads, *call.writes):
            users[storage].add(owner[op])
    ops_of_owner: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for op, call in updates:
        weight = owner[op]
        if weight is not None:
            ops_of_owner[weight, call.update].append(op)
    return [ops for ops in ops_of_owner.values() if len(ops) > 1]


def _is_free(trace: Trace, ops: Sequence[int]) -> bool:
    """Return whether nothing between some ops touches what they write, or writes what they read."""
    own = set(ops)
    calls = _calls(trace, ops)
    written = {storage for call in calls for storage in (*call.writes, *call.creates)}
    read = {storage for call in calls for storage in call.reads}
    for op in range(ops[0], ops[-1]):
        other = trace.ops[op]
        if op not in own and isinstance(other, Call):
            if not written.isdisjoint((*other.reads, *other.writes)):
                return False
            if not read.isdisjoint((*other.writes, *other.creates)):
                return False
    return True


def _whole(trace: Trace, ops: Sequence[int], users: Mapping[int, set[int]]) -> Call:
    parts = tuple(_calls(trace, ops))
    made = {storage for part in parts for storage in part.creates}
    own = set(ops)
    kept = {storage for storage in made if not users.get(storage, own) <= own}
    reads = dict.fromkeys(s for part in parts for s in part.reads if s not in made)
    writes = dict.fromkeys(s for part in parts for s in part.writes if s not in made)
    return replace(
        parts[-1],
        arguments=(),
        keywords={},
        outputs=(),
        reads=tuple(storage for storage in reads if storage not in writes),
        writes=tuple(writes),
        creates=tuple(sorted(kept)),
        flops=sum(part.flops for part in parts),
        bytes_accessed=_bytes_of(parts, made - kept),
        belongs_to=next(part.belongs_to for part in parts if part.belongs_to is not None),
        rng_index=None,
        parts=parts,
    )


def _calls(trace: Trace, ops: Iterable[int]) -> list[Call]:
    return [call for call in (trace.ops[op] for op in ops) if isinstance(call, Call)]


def _users(trace: Trace) -> Mapping[int, set[int]]:
    """Return the ops that read or write each storage, and -1 for those that hold results."""
    users: defaultdict[int, set[int]] = defaultdict(set)
    for op, call in enumerate(trace.ops):
        if isinstance(call, Call):
            for storage in (*call.reads, *call.writes):
                users[storage].add(op)
    for view in trace.results.values():
        users[view.storage].add(-1)
    return users


def _bytes_of(parts: Sequence[Call], inside: set[int]) -> int:
    """Return the bytes of what parts read and write, but of what is there only between them."""
    read: defaultdict[int, int] = defaultdict(int)
    written: defaultdict[int, int] = defaultdict(int)
    for part in parts:
        for view in views_in((part.arguments, part.keywords, part.outputs)):
            if view.storage in inside:
                continue
            if view.storage in (*part.writes, *part.creates):
                written[view.storage] = max(written[view.storage], view.num_bytes)
            if view.storage not in part.creates:
                read[view.storage] = max(read[view.storage], view.num_bytes)
    return sum(read.values()) + sum(written.values())
