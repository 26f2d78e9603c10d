"""Runs the ops of a trace on real tensors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.trace import Call, Source, TensorRef, Trace, tensor_leaves

ValueOf = Callable[[Source, str, TensorRef], torch.Tensor]


def look_at(storage: torch.UntypedStorage, ref: TensorRef) -> torch.Tensor:
    """Return a look at a storage, wherever it is."""
    tensor = torch.empty(0, dtype=ref.dtype, device=storage.device)
    tensor.set_(storage, ref.offset, ref.size, ref.stride)
    if ref.is_conjugated:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if ref.is_negated else tensor


class Memory:
    """The storages of a trace on one device: made when first needed, freed after the last use.

    Parameters
    ----------
    trace
        What runs.
    device
        Where.
    value_of
        Called with a source, the name of one of its tensors and the reference to it; returns the
        values that the tensor has before the step.
    kept
        Storages that are not freed.
    """

    def __init__(
        self, trace: Trace, device: torch.device, value_of: ValueOf, kept: Iterable[int] = ()
    ) -> None:
        self._trace = trace
        self._device = device
        self._value_of = value_of
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._uses_left = dict.fromkeys(kept, len(trace.ops))
        for call in trace.calls:
            for storage in _touched(call):
                self._uses_left[storage] = self._uses_left.get(storage, 0) + 1
        self._source_of_storage = {
            storage: source for source in trace.sources for storage in source.storages
        }

    def tensor(self, ref: TensorRef) -> torch.Tensor:
        """Return a tensor; one that nothing has made yet has the values from before the step."""
        if ref.storage not in self._storages:
            self._make(ref.storage)
        return look_at(self._storages[ref.storage], ref)

    def arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what an op is called with."""
        return self.real(call.arguments), self.real(call.keywords)

    def run(self, call: Call, seed: int) -> None:
        """Run an op; what it draws follows from a seed and from which draw it is."""
        for part in call.parts or (call,):
            args, kwargs = self.arguments(part)
            if part.draw is not None:
                torch.manual_seed(seed + part.draw)
            self.keep(part, part.function(*args, **kwargs))
        self.finish(call)

    def written(self, call: Call) -> list[torch.Tensor]:
        """Return what an op changes, as the bytes of whole storages."""
        sizes = [self._trace.storage_bytes[storage] for storage in call.writes]
        return [
            self.tensor(TensorRef(storage, torch.uint8, (size,), (1,), 0))
            for storage, size in zip(call.writes, sizes, strict=True)
        ]

    def keep(self, call: Call, result: Any) -> None:
        """Take over what an op returned."""
        for ref, tensor in zip(call.outputs, tensor_leaves(result), strict=True):
            if ref is not None and tensor is not None and ref.storage not in self._storages:
                self._take_over(ref, tensor)

    def finish(self, call: Call) -> None:
        """Free what no other op uses, and what was there only between the parts of an op."""
        for part in call.parts:
            for storage in part.creates:
                if storage not in call.creates:
                    self._storages.pop(storage, None)
        for storage in _touched(call):
            self._uses_left[storage] -= 1
            if not self._uses_left[storage]:
                self._storages.pop(storage, None)

    def _take_over(self, ref: TensorRef, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        layout = tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), storage.nbytes()
        if layout == (ref.size, ref.stride, ref.offset, self._trace.storage_bytes[ref.storage]):
            self._storages[ref.storage] = storage
        else:  # a kernel may lay out its result in another way than fake tensors say
            self._allocate(ref.storage)
            self.tensor(ref).copy_(tensor)

    def _make(self, storage: int) -> None:
        self._allocate(storage)
        source = self._source_of_storage.get(storage)
        if source is not None:
            for name, ref in {**source.tensors, **source.state}.items():
                if ref.storage == storage:
                    self.tensor(ref).copy_(self._value_of(source, name, ref))

    def _allocate(self, storage: int) -> None:
        self._storages[storage] = torch.empty(
            self._trace.storage_bytes[storage], dtype=torch.uint8, device=self._device
        ).untyped_storage()

    def real(self, value: Any) -> Any:
        """Return arguments with tensors in place of references."""
        if isinstance(value, TensorRef):
            return self.tensor(value)
        if isinstance(value, torch.Tensor):  # a constant, whose values the op itself holds
            return value.detach().to(self._device, copy=True)
        if isinstance(value, torch.device):
            return self._device
        if isinstance(value, (list, tuple)):
            return type(value)(self.real(item) for item in value)
        if isinstance(value, dict):
            return {key: self.real(item) for key, item in value.items()}
        return value


def replay(
    trace: Trace,
    values: Mapping[str, torch.Tensor],
    *,
    order: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Run a traced step on real tensors on the CPU.

    Parameters
    ----------
    trace
        The step.
    values
        The tensors of its sources before the step, by name; those that `capture` was given are
        known already. They stay as they are.
    order
        The indices of all ops in any topological order; that of the trace by default.
    seed
        An op whose `Call.draw` is n draws the random numbers that it draws after
        ``torch.manual_seed(seed + n)``, whatever the order.

    Returns
    -------
    dict of str to `torch.Tensor`
        The results of the trace, and weights, buffers and optimizer state after the step.
    """

    def value_of(source: Source, name: str, _: TensorRef) -> torch.Tensor:
        value = values.get(name, source.values.get(name))
        if value is None or value.is_meta:
            raise CaptureError(f"values: expected a tensor for {name!r}, got none")
        return value.detach()

    wanted = dict(trace.results)
    for source in trace.sources:
        if source.is_resident:
            wanted |= {**source.tensors, **source.state}
    memory = Memory(trace, torch.device("cpu"), value_of, {ref.storage for ref in wanted.values()})
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for op in range(len(trace.ops)) if order is None else order:
            call = trace.ops[op]
            if isinstance(call, Call):
                memory.run(call, seed)
        return {name: memory.tensor(ref).clone() for name, ref in wanted.items()}


def _touched(call: Call) -> Iterable[int]:
    return dict.fromkeys((*call.reads, *call.writes, *call.creates))


WEIGHT_SCALE = 0.02  # of weights that have no values


def example_values(generator: torch.Generator) -> ValueOf:
    """Return what gives a tensor of a source the values that `capture` was given, or random ones.

    What the optimizer keeps, and whole numbers that are not known, are zero.
    """

    def value_of(source: Source, name: str, ref: TensorRef) -> torch.Tensor:
        value = source.values.get(name)
        if value is not None and not value.is_meta:
            return value.detach()
        if name in source.state or not ref.dtype.is_floating_point:
            return torch.zeros(ref.size, dtype=ref.dtype)
        values = torch.randn(ref.size, generator=generator)
        if source.op_type == "parameter":
            values *= WEIGHT_SCALE
        if source.op_type == "buffer":
            values = values.abs()  # it may be a variance
        return values.to(ref.dtype)

    return value_of
