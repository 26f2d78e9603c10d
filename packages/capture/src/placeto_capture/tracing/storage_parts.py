"""The parts of a storage that the ops of a step tell apart.

An op looks at a storage through a tensor, which may show a part of it: a slice, a column, one third
of the columns. A tensor shows runs of bytes that repeat at some strides. Where each of the strides
that the tensors of a storage have divides the next one, they are the places of a number system in
which addresses are written: each digit of the bytes that a tensor shows goes from one value to
another, and the tensor is a box. Cut where these boxes begin and end, the storage falls into parts
of which each tensor shows some, and no other part at all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

import torch

from placeto_capture.tracing.trace import TensorRef

MAX_PARTS = 1024  # of one storage; beyond that it is one part

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Look:
    """What a tensor shows of a storage.

    Attributes
    ----------
    parts : tuple of int
        The parts of which it shows some bytes.
    is_exact : bool
        Whether it shows all bytes of these parts.
    """

    parts: tuple[int, ...]
    is_exact: bool


class StorageParts:
    """The parts of one storage.

    Tensors that are no boxes beside each other are taken for all bytes from their first one to
    their last one; where even that makes too many parts, for the whole storage.

    Parameters
    ----------
    whole
        All bytes of the storage.
    refs
        The tensors that ops look at it through.

    Attributes
    ----------
    parts : list of `TensorRef`
        The bytes of each part.

    Examples
    --------
    >>> whole = whole_storage(0, 32)
    >>> last_2_columns = TensorRef(0, torch.uint8, (4, 2), (8, 1), 6)
    >>> storage = StorageParts(whole, [whole, last_2_columns])
    >>> storage.sizes, storage.shown(last_2_columns)
    ([24, 8], Look(parts=(1,), is_exact=True))
    """

    def __init__(self, whole: TensorRef, refs: Iterable[TensorRef]) -> None:
        runs_of = {ref: _Runs.of(ref) for ref in refs if ref.num_elements}
        one = _Boxes([whole], dict.fromkeys(runs_of, (0,)))
        if all(runs.num_bytes == whole.num_bytes for runs in runs_of.values()):
            boxes = one  # as most are
        else:
            boxes = (
                _boxes(whole, runs_of)
                or _boxes(whole, {ref: runs.hull() for ref, runs in runs_of.items()})
                or one
            )
        self.parts = boxes.parts
        self.sizes = [part.num_bytes for part in self.parts]
        self._look_of: dict[TensorRef, Look] = {}
        for ref, runs in runs_of.items():
            parts = boxes.shown_by[ref]
            num_shown = sum(self.sizes[part] for part in parts)
            self._look_of[ref] = Look(parts, runs.is_exact and runs.num_bytes == num_shown)

    def shown(self, ref: TensorRef) -> Look:
        """Return what one of the tensors shows; one without elements shows nothing."""
        return self._look_of.get(ref, Look((), is_exact=True))


def whole_storage(storage: int, num_bytes: int) -> TensorRef:
    """Return a tensor of all bytes of a storage."""
    return TensorRef(storage, torch.uint8, (num_bytes,), (1,), 0)


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
    def of(cls, ref: TensorRef) -> "_Runs":
        """Return those of a tensor that has elements."""
        width = ref.dtype.itemsize
        start = ref.offset * width
        steps = [(1, width)]
        for stride, size in sorted(zip(ref.stride, ref.size, strict=True)):
            if stride == 0 or size == 1:
                continue
            last_stride, last_size = steps[-1]
            if stride * width < last_stride * last_size:
                end = 1 + sum((n - 1) * s for s, n in zip(ref.stride, ref.size, strict=True))
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


@dataclass(frozen=True)
class _Boxes:
    """The parts of a storage, and which of them each tensor shows."""

    parts: list[TensorRef]
    shown_by: dict[TensorRef, tuple[int, ...]]


def _boxes(whole: TensorRef, runs_of: dict[TensorRef, _Runs]) -> _Boxes | None:
    """Return a storage cut into boxes, None if a tensor is no box or there are too many parts."""
    places = sorted({1, *(stride for runs in runs_of.values() for stride, _ in runs.steps)})
    steps = list(pairwise([*places, whole.num_bytes]))
    if any(high % low for low, high in steps):
        return None
    radices = [high // low for low, high in steps]
    box_of: dict[TensorRef, list[Interval]] = {}
    for ref, runs in runs_of.items():
        box = _box(runs, places, radices)
        if box is None:
            return None
        box_of[ref] = box
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
    for ref, box in box_of.items():
        shown = [
            [(low, high) for low, high in intervals if start <= low and high <= end]
            for intervals, (start, end) in zip(digits, reversed(box), strict=True)
        ]
        shown_by[ref] = tuple(number[part] for part in product(*shown))
    return _Boxes(parts, shown_by)


def _part(storage: int, box: Sequence[Interval], places: Sequence[int]) -> TensorRef:
    return TensorRef(
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
