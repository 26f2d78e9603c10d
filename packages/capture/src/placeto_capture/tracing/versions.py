"""The versions that ops make of storages, their readers, and the order of the ops."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

LONGEST_SEARCH = 1_000  # ops that `EarlierOps` looks at before the answer is no


@dataclass(eq=False)
class Version:
    """The parts of a storage that an op has made."""

    producer: int  # the op
    storage: int | None  # None for what says only that the op comes before others
    bytes_of_part: Mapping[int, int]  # the parts of the storage that the op writes, and their bytes
    held: set[int] = field(default_factory=set)  # the parts that stay until the end of the step

    @property
    def num_bytes(self) -> int:
        """The bytes of all its parts."""
        return sum(self.bytes_of_part.values())


Read = tuple[Version, int, Sequence[int]]  # a version, the op that reads it, and parts of it


def as_tensors(
    versions: Sequence[Version], reads: Sequence[Read]
) -> tuple[list[Version], list[tuple[int, int]]]:
    """Return the tensors, each as the parts of a version that it is, and their edges.

    A tensor is all parts of a version that the same ops read. One without bytes is one.
    """
    readers: defaultdict[tuple[Version, int], list[int]] = defaultdict(list)
    for version, op, parts in reads:
        for part in parts:
            readers[version, part].append(op)
    tensors: list[Version] = []
    tensor_of_part: dict[tuple[Version, int], int] = {}
    for version in versions:
        groups: defaultdict[Hashable, dict[int, int]] = defaultdict(dict)
        has_bytes = version.num_bytes > 0
        for part, size in version.bytes_of_part.items():
            key = (part in version.held, *readers[version, part]) if has_bytes else None
            groups[key][part] = size
        for sizes in groups.values() or [{}]:
            tensor_of_part.update(((version, part), len(tensors)) for part in sizes)
            held = version.held & sizes.keys()
            tensors.append(Version(version.producer, version.storage, sizes, held))
    edges = [
        (tensor, op)
        for version, op, parts in reads
        for tensor in dict.fromkeys(tensor_of_part[version, part] for part in parts)
    ]
    return tensors, edges


class EarlierOps:
    """The ops that come before one by the edges of a graph, queried from the last to the first.

    The search begins with the earliest ops. From a gradient op, the way to the inputs of its
    forward op is short by way of what that has kept. After some steps the answer is no, which is
    safe: a further edge only says what other edges say already.
    """

    def __init__(self, before: Sequence[Iterable[int]], inputs: Iterable[int]) -> None:
        self._before = before  # for each op those right before it
        self._seen = set(inputs)
        self._waiting: list[int] = []  # a heap of ops after the one that was asked for
        self._further = [-op for op in self._seen]  # a heap of ops before it, the last one first
        heapify(self._further)

    def has(self, op: int) -> bool:
        """Return whether an op is among them."""
        while self._further and -self._further[0] >= op:
            heappush(self._waiting, -heappop(self._further))
        for _ in range(LONGEST_SEARCH):
            if op in self._seen or not self._waiting:
                break
            for before in self._before[heappop(self._waiting)]:
                if before not in self._seen:
                    self._seen.add(before)
                    if before > op:
                        heappush(self._waiting, before)
                    else:
                        heappush(self._further, -before)
        return op in self._seen

    def add(self, op: int) -> None:
        """Add an op that was not among them."""
        self._seen.add(op)
        heappush(self._waiting, op)
