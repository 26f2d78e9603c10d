"""The parts of storages that the ops of a step tell apart, and which of them each op accesses.

An op accesses a storage through a view, which may show a part of it: a slice, a column, one third
of the columns. A tensor shows runs of bytes that repeat at some strides. If each stride of a
storage's tensors divides the next one, they are the places of a number system for addresses. Each
digit of the bytes that a tensor shows then goes from one value to another, and the
tensor is a box. The storage is cut where these boxes begin and end. Each tensor shows some of the
parts, and nothing of the others.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from math import prod
from typing import NamedTuple

import torch

from placeto_capture.tracing.functions import OVERWRITES, function_of
from placeto_capture.tracing.trace import Call, Op, Trace, View, views_in, whole_storage

MAX_PARTS = 1024  # of one storage; beyond that it is one part

Interval = tuple[int, int]


class Coverage(NamedTuple):
    """The parts of a storage of which a tensor shows some bytes, and whether it shows all."""

    parts: tuple[int, ...]
    is_exact: bool


class StorageParts:
    """The parts of one storage.

    Tensors that are no boxes count as all bytes from their first one to their last one. If even
    that makes too many parts, they count as the whole storage.

    Attributes
    ----------
    parts : list of `View`
        The bytes of each part.
    """

    def __init__(self, whole: View, views: Iterable[View]) -> None:
        runs_of = {view: _Runs.of(view) for view in views if view.num_elements}
        boxes: Boxes = [whole], dict.fromkeys(runs_of, (0,))
        if any(runs.num_bytes != whole.num_bytes for runs in runs_of.values()):  # most show all
            boxes = (
                _boxes(whole, runs_of)
                or _boxes(whole, {view: runs.hull() for view, runs in runs_of.items()})
                or boxes
            )
        self.parts, shown_by = boxes
        self.sizes = [part.num_bytes for part in self.parts]
        self._coverage_of: dict[View, Coverage] = {}
        for view, runs in runs_of.items():
            parts = shown_by[view]
            num_shown = sum(self.sizes[part] for part in parts)
            self._coverage_of[view] = Coverage(parts, runs.is_exact and runs.num_bytes == num_shown)

    def shown(self, view: View) -> Coverage:
        """Return what one of the tensors shows; one without elements shows nothing."""
        return self._coverage_of.get(view, Coverage((), is_exact=True))


@dataclass(frozen=True, slots=True)
class _Runs:
    """The bytes that a tensor shows.

    ``steps`` are pairs of stride and size, ascending, the first of which has the stride 1. They
    show each byte once: where a tensor shows some twice, they are all from its first to its last.
    """

    start: int
    steps: tuple[Interval, ...]
    is_exact: bool = True

    @classmethod
    def of(cls, view: View) -> "_Runs":
        """Return those of a tensor that has elements."""
        width = view.dtype.itemsize
        start = view.offset * width
        steps = [(1, width)]
        for stride, size in sorted(zip(view.stride, view.size, strict=True)):
            if stride == 0 or size == 1:
                continue
            last_stride, last_size = steps[-1]
            if stride * width < last_stride * last_size:
                end = 1 + sum((n - 1) * s for s, n in zip(view.stride, view.size, strict=True))
                return cls(start, ((1, end * width),), is_exact=False)
            if stride * width == last_stride * last_size:
                steps[-1] = last_stride, last_size * size
            else:
                steps.append((stride * width, size))
        return cls(start, tuple(steps))

    @property
    def num_bytes(self) -> int:
        """How many bytes they are."""
        return prod(size for _, size in self.steps)

    def hull(self) -> "_Runs":
        """Return all bytes from the first to the last."""
        if len(self.steps) == 1:
            return self
        end = 1 + sum((size - 1) * stride for stride, size in self.steps)
        return _Runs(self.start, ((1, end),), is_exact=False)


Boxes = tuple[list[View], dict[View, tuple[int, ...]]]  # parts, and those that each tensor shows


def _boxes(whole: View, runs_of: dict[View, _Runs]) -> Boxes | None:
    """Return a storage cut into boxes, None if a tensor is no box or there are too many parts."""
    places = sorted({1, *(stride for runs in runs_of.values() for stride, _ in runs.steps)})
    steps = list(pairwise([*places, whole.num_bytes]))
    if any(high % low for low, high in steps):
        return None
    radices = [high // low for low, high in steps]
    box_of: dict[View, list[Interval]] = {}
    for view, runs in runs_of.items():
        box = _box(runs, places, radices)
        if box is None:
            return None
        box_of[view] = box
    cuts = [
        sorted({0, radix, *(end for box in box_of.values() for end in box[digit])})
        for digit, radix in enumerate(radices)
    ]
    if prod(len(ends) - 1 for ends in cuts) > MAX_PARTS:
        return None
    # Parts are in the order of their addresses, in which the last digit is the highest one.
    digits = [list(pairwise(ends)) for ends in reversed(cuts)]
    number = {box: part for part, box in enumerate(product(*digits))}
    parts = [_part(whole.storage, box[::-1], places) for box in number]
    shown_by = {}
    for view, box in box_of.items():
        shown = [
            [(low, high) for low, high in intervals if start <= low and high <= end]
            for intervals, (start, end) in zip(digits, reversed(box), strict=True)
        ]
        shown_by[view] = tuple(number[part] for part in product(*shown))
    return parts, shown_by


def _part(storage: int, box: Sequence[Interval], places: Sequence[int]) -> View:
    return View(
        storage,
        torch.uint8,
        size=tuple(end - start for start, end in box),
        stride=tuple(places),
        offset=sum(start * place for (start, _), place in zip(box, places, strict=True)),
    )


def _box(runs: _Runs, places: Sequence[int], radices: Sequence[int]) -> list[Interval] | None:
    """Return from which value to which each digit of the addresses goes, None if it is no box."""
    digits = [runs.start // place % radix for place, radix in zip(places, radices, strict=True)]
    box = [(digit, digit + 1) for digit in digits]
    taken: set[int] = set()
    for stride, size in runs.steps:
        place, left = places.index(stride), size
        while True:
            if place in taken or place == len(places):
                return None
            taken.add(place)
            digit, radix = digits[place], radices[place]
            if digit + left <= radix:
                box[place] = digit, digit + left
                break
            if digit or left % radix:
                return None
            box[place] = 0, radix
            left //= radix
            place += 1
    return box


@dataclass(frozen=True)
class Access:
    """How a call uses the parts of a storage."""

    read: tuple[int, ...]  # also those that it changes without overwriting all of their bytes
    written: tuple[int, ...]

    @property
    def all(self) -> set[int]:
        """The parts that it reads or changes."""
        return {*self.read, *self.written}


class StorageAccesses:
    """The parts of all storages of a trace, and how its ops use them."""

    def __init__(self, trace: Trace) -> None:
        self._ops = trace.ops
        self._held_bytes = trace.held_bytes
        self._looks = [_looks(op) for op in trace.ops]
        views: defaultdict[int, set[View]] = defaultdict(set)
        for looks in self._looks:
            for storage, at_storage in looks.items():
                views[storage].update(view for view, _ in at_storage)
        self._parts = [
            StorageParts(whole_storage(storage, num_bytes), views[storage])
            for storage, num_bytes in enumerate(trace.storage_bytes)
        ]

    def parts(self, storage: int) -> list[View]:
        """Return the bytes of each part of a storage."""
        return self._parts[storage].parts

    def sizes(self, storage: int) -> list[int]:
        """Return how many bytes each part of a storage is held in."""
        sizes = self._parts[storage].sizes
        if storage not in self._held_bytes:
            return sizes
        held, whole = self._held_bytes[storage], sum(sizes)
        ends = [end * held // whole for end in accumulate(sizes, initial=0)]
        return [end - start for start, end in pairwise(ends)]

    def access(self, op: int, storage: int) -> Access:
        """Return how an op uses a storage that it reads or writes."""
        read: set[int] = set()
        written: set[int] = set()
        for view, is_written in self._looks[op][storage]:
            shown = self._parts[storage].shown(view)
            if is_written:
                written.update(shown.parts)
            # What is not wholly overwritten is still there afterwards, as if it had been read.
            if not is_written or not shown.is_exact:
                read.update(shown.parts)
        return Access(tuple(sorted(read)), tuple(sorted(written)))

    def made(self, op: int, storage: int) -> Iterable[int]:
        """Return the parts that a call makes of a storage: those that it writes, or all."""
        call = self._ops[op]
        if storage in call.creates and (call.parts or storage not in self._looks[op]):
            return range(len(self.sizes(storage)))
        return self.access(op, storage).written


def _looks(op: Op) -> dict[int, set[tuple[View, bool]]]:
    """Return how an op, or each of its parts, looks at each storage, and whether it writes so."""
    looks: defaultdict[int, set[tuple[View, bool]]] = defaultdict(set)
    if isinstance(op, Call) and op.is_free:
        for view in op.arguments:
            looks[view.storage].add((view, False))
    for part in op.single_calls:
        function = function_of(part.function)
        read = views_in((part.arguments, part.keywords))
        for view in views_in(function.written(part.arguments, part.keywords)):
            looks[view.storage].add((view, True))
            if function.name in OVERWRITES:
                read.remove(view)
        for view in read:
            looks[view.storage].add((view, False))
    return looks
