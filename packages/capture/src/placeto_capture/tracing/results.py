"""What calls return, as fake tensors, and what they cost: once for all that are alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from placeto_capture.tracing.devices import OF_FAKES
from placeto_capture.tracing.replay import view_of
from placeto_capture.tracing.trace import View, tensor_leaves


class Arguments:
    """The arguments of a call, with views in place of tensors.

    Calls of a function are alike if their arguments are of one ``kind``.
    """

    def __init__(self, args: Any, kwargs: Any, look_up: Callable[[torch.Tensor], View]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.views: list[View] = []  # of these tensors
        self.storages: dict[int, int] = {}  # those of the views, and the number of each here
        self.kind: list[Any] = [torch.get_default_dtype()]
        self.has_values = False  # whether the result may depend on values of tensors
        self._look_up = look_up
        self.positional: Any = self._described(args)
        self.keywords: Any = self._described(kwargs)

    def _described(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            view = self._look_up(value)
            number = self.storages.setdefault(view.storage, len(self.storages))
            self.kind.append(view._replace(storage=number))
            self.tensors.append(value)
            self.views.append(view)
            self.has_values |= value.constant is not None
            return view
        kind = type(value)
        if kind in (list, tuple):
            self.kind += kind, len(value)
            return kind([self._described(element) for element in value])
        if kind is dict:
            self.kind += value
            return {name: self._described(element) for name, element in value.items()}
        self.kind += kind, value  # as 1, 1.0 and True are equal
        self.has_values |= isinstance(value, torch.Tensor)
        return value


@dataclass(frozen=True, slots=True)
class Result:
    """What calls that are alike return and cost."""

    sequence: type | None  # list or tuple, if they return one
    # Each is the number of a tensor among the arguments, a view, or None. Storages of views have
    # their numbers in the call, and new ones those after them.
    leaves: tuple[int | View | None, ...]
    new_bytes: tuple[int, ...]  # of new storages
    written: tuple[int, ...]  # numbers of the tensors among the arguments that they change
    flops: int
    bytes_accessed: int

    @classmethod
    def of(
        cls,
        arguments: Arguments,
        returned: Any,
        outputs: Sequence[View | None],
        storages: Sequence[torch.UntypedStorage],
        written: Sequence[View],
        flops: int,
        bytes_accessed: int,
    ) -> "Result":
        """Return what a call has returned, of which the tensors are views of storages."""
        numbers = {**arguments.storages}
        leaves: list[int | View | None] = []
        for tensor, view in zip(tensor_leaves(returned), outputs, strict=True):
            if view is not None:
                number = numbers.setdefault(view.storage, len(numbers))
                same = (i for i, argument in enumerate(arguments.tensors) if argument is tensor)
                leaves.append(next(same, view._replace(storage=number)))
            else:
                leaves.append(None)
        return cls(
            sequence=type(returned) if isinstance(returned, (list, tuple)) else None,
            leaves=tuple(leaves),
            new_bytes=tuple(storages[s].nbytes() for s in numbers if s not in arguments.storages),
            written=tuple(map(arguments.views.index, written)),
            flops=flops,
            bytes_accessed=bytes_accessed,
        )

    def made(
        self, arguments: Arguments, storages: Sequence[torch.UntypedStorage], mode: FakeTensorMode
    ) -> Any:
        """Return the result of a call whose arguments have some of the storages of a step."""
        touched = [storages[storage] for storage in arguments.storages]
        touched += [meta_storage(num_bytes) for num_bytes in self.new_bytes]
        leaves: list[Any] = []
        for leaf in self.leaves:
            if isinstance(leaf, View):
                leaves.append(fake_view(mode, touched[leaf.storage], leaf))
            else:
                leaves.append(None if leaf is None else arguments.tensors[leaf])
        return leaves[0] if self.sequence is None else self.sequence(leaves)


def meta_storage(num_bytes: int) -> torch.UntypedStorage:
    """Return a storage of fake tensors."""
    return torch.UntypedStorage(num_bytes, device="meta")  # type: ignore[no-untyped-call]


def fake_view(mode: FakeTensorMode, storage: torch.UntypedStorage, view: View) -> FakeTensor:
    """Return a fake tensor that is a view of a storage of such."""
    with torch._C._DisableTorchDispatch():
        return FakeTensor(mode, view_of(storage, view), OF_FAKES)


def returns_values(returned: Any) -> bool:
    """Return whether a call has returned something but tensors whose values are not known."""
    rows = returned if isinstance(returned, (list, tuple)) else [returned]
    return any(
        row is not None and not (isinstance(row, FakeTensor) and row.constant is None)
        for row in rows
    )
