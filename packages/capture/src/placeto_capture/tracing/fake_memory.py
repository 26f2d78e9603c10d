"""Fake tensors in place of real ones, which share storages where the real ones share memory."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from inspect import getattr_static
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.results import fake_view, meta_storage
from placeto_capture.tracing.trace import View, view_in

PLAIN = torch.Tensor, nn.Parameter
NamedTensors = Sequence[tuple[str, torch.Tensor]]


class Span(NamedTuple):
    """The bytes from the first element of a tensor to its last, in a space of addresses."""

    space: Hashable  # a device, or one storage where tensors have no addresses
    start: int
    end: int

    def overlaps(self, other: "Span") -> bool:
        return self.space == other.space and self.start < other.end and other.start < self.end


@dataclass(eq=False)
class Region:
    """Memory that one tensor has for itself, or that several have parts of."""

    op_type: str  # "parameter", "buffer" or "input", the first that one of its tensors is
    span: Span  # the real bytes that it stands for
    storage: torch.UntypedStorage  # of the fake tensors
    # Fake and real tensors by name.
    tensors: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    bases: dict[int, torch.Tensor] = field(default_factory=dict)  # those that only views are of


class FakeMemory:
    """The memory of all tensors before a step; those overlap whose first to last bytes do."""

    def __init__(
        self, resident: NamedTensors, inputs: NamedTensors, fake_mode: FakeTensorMode
    ) -> None:
        self.regions: list[Region] = []  # in the order in which their first tensors were given
        self.fake_of: dict[int, Any] = {}  # fake tensors by the identity of the real ones
        self.fake_mode = fake_mode
        self._resident = {id(tensor) for _, tensor in resident}
        named = [*resident, *inputs]
        for group in _overlapping([_span(name, tensor) for name, tensor in named]):
            self._add_region([named[index] for index in group])

    def add_constant(self, name: str, tensor: torch.Tensor) -> tuple[Region, str]:
        """Add a tensor that was not given before; return its region, and its name there."""
        span = _span(name, tensor)
        met = [region for region in self.regions if region.span.overlaps(span)]
        if not met:
            self._add_region([(name, tensor)])
            return self.regions[-1], name
        around = met[0].span
        if len(met) > 1 or not around.start <= span.start <= span.end <= around.end:
            raise CaptureError(
                f"{name}: expected memory that is shared with parameters, buffers and inputs only, "
                "got a tensor that overlaps with a part of it; register that as a buffer"
            )
        names = (name if suffix == 1 else f"{name}_{suffix}" for suffix in count(1))
        key = next(candidate for candidate in names if candidate not in met[0].tensors)
        met[0].tensors[key] = self._fake(name, tensor, met[0]), tensor
        return met[0], key

    def _add_region(self, named: NamedTensors) -> None:
        tensors = [tensor for _, tensor in named]
        span = _union([_span(name, tensor) for name, tensor in named], tensors)
        resident = [tensor for tensor in tensors if id(tensor) in self._resident]
        is_parameter = any(isinstance(tensor, nn.Parameter) for tensor in resident)
        op_type = "parameter" if is_parameter else "buffer" if resident else "input"
        region = Region(op_type, span, meta_storage(span.end - span.start))
        for name, tensor in sorted(named, key=lambda item: item[1]._base is not None):
            self._fake(name, tensor, region)  # a tensor comes before the views of it
        region.tensors |= {name: (self.fake_of[id(real)], real) for name, real in named}
        self.regions.append(region)

    def _fake(self, name: str, tensor: torch.Tensor, region: Region) -> torch.Tensor:
        fake = self.fake_of.get(id(tensor))
        if fake is None:
            with self.fake_mode, torch.enable_grad():
                view = view_in(tensor, 0)._replace(offset=_offset(name, tensor, region))
                base, is_plain = tensor._base, not (tensor.is_conj() or tensor.is_neg())
                if base is not None and base.dtype == tensor.dtype and tensor.numel() and is_plain:
                    # A view to autograd, too, so that gradients of writes find their way.
                    count = (region.span.end - region.span.start) // base.itemsize
                    all_of_it = View(0, base.dtype, (count,), (1,), 0)
                    fake = fake_view(self.fake_mode, region.storage, all_of_it)
                    whole = self.fake_of.get(id(base), region.bases.setdefault(id(base), fake))
                    fake = whole.as_strided(view.size, view.stride, view.offset)
                else:
                    fake = fake_view(self.fake_mode, region.storage, view)
                if isinstance(tensor, nn.Parameter):
                    fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
                elif tensor.requires_grad and id(tensor) not in self._resident:
                    fake.requires_grad_()
            self.fake_of[id(tensor)] = fake
        return fake


def _span(name: str, tensor: torch.Tensor) -> Span:
    _check(name, tensor)
    if not tensor.numel():
        return Span(("empty", id(tensor)), 0, 0)
    storage = tensor.untyped_storage()
    # Fake tensors warn when they are asked for an address; those on the meta device say 0.
    address = 0 if isinstance(tensor, FakeTensor) else storage.data_ptr()
    space: Hashable = tensor.device if address else storage._cdata
    start = address + int(tensor.storage_offset()) * tensor.itemsize
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )
    return Span(space, start, start + (last + 1) * tensor.itemsize)


def _check(name: str, tensor: torch.Tensor) -> None:
    if is_lazy(tensor):
        raise CaptureError(
            f"{name}: expected a parameter with a shape, got one that gets it from the first "
            "input; call the model once before"
        )
    if not is_plain(tensor):
        raise CaptureError(
            f"{name}: expected a plain tensor, got a {type(tensor).__name__}, which computes in a "
            "way of its own; capture the model before it is sharded, quantized or wrapped"
        )
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested one" if tensor.is_nested else f"one of layout {tensor.layout}"
        raise CaptureError(f"{name}: expected a dense tensor, got {kind}")


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether functions do with a tensor what they do with those of torch's own classes."""
    return type(tensor) is FakeTensor or all(
        any(getattr_static(tensor, name) is getattr_static(plain, name) for plain in PLAIN)
        for name in ("__torch_function__", "__torch_dispatch__")
    )


def _overlapping(spans: Sequence[Span]) -> list[list[int]]:
    """Return groups of spans that overlap, also by way of others, as indices."""
    by_space: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, span in enumerate(spans):
        by_space[span.space].append(index)
    groups: list[list[int]] = []
    for indices in by_space.values():
        end = 0
        for index in sorted(indices, key=lambda index: spans[index].start):
            # One tensor without elements that has two names is in one place, too.
            joins = spans[index].start < end or (index != indices[0] and not spans[index].end)
            if not joins:
                groups.append([])
            groups[-1].append(index)
            end = max(end, spans[index].end)
    return sorted(sorted(group) for group in groups)


def _union(spans: Sequence[Span], tensors: Sequence[torch.Tensor]) -> Span:
    start = min(span.start for span in spans)
    if len({tensor.dtype for tensor in tensors}) > 1:
        start -= start % max(tensor.itemsize for tensor in tensors)
    return Span(spans[0].space, start, max(span.end for span in spans))


def _offset(name: str, tensor: torch.Tensor, region: Region) -> int:
    """Return where a tensor begins in a region, in elements."""
    offset, rest = divmod(_span(name, tensor).start - region.span.start, tensor.itemsize)
    if rest:
        raise CaptureError(
            f"{name}: expected a tensor that begins whole elements of {tensor.itemsize} bytes "
            f"behind {next(iter(region.tensors), 'others')}, with which it shares memory, "
            f"got {rest} bytes more"
        )
    return offset
