"""The versions of storages that ops make, and the tensors that they come to."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class Version:
    """What an op makes in a storage.

    Attributes
    ----------
    producer : int
        The op.
    storage : int or None
        None for what says only that the op comes before others.
    bytes_of_part : dict of int to int
        The parts of the storage that the op writes, and their bytes.
    readers : dict of int to list of int
        The ops that read each of these parts.
    """

    producer: int
    storage: int | None
    bytes_of_part: Mapping[int, int]
    readers: dict[int, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.readers = {part: [] for part in self.bytes_of_part}

    @property
    def num_bytes(self) -> int:
        """The bytes of all its parts."""
        return sum(self.bytes_of_part.values())

    def by_readers(self) -> list[dict[int, int]]:
        """Return the bytes of its parts, those that the same ops read together."""
        if not self.num_bytes:
            return [dict(self.bytes_of_part)]
        sizes: defaultdict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
        for part, size in self.bytes_of_part.items():
            sizes[tuple(self.readers[part])][part] = size
        return list(sizes.values())


class Versions:
    """All versions of a step, in the order in which they were made, and who reads what of them."""

    def __init__(self) -> None:
        self.versions: list[Version] = []
        self._reads: list[tuple[int, int, tuple[int, ...]]] = []  # version, op, parts

    def add(self, version: Version) -> int:
        """Add a version; return its index."""
        self.versions.append(version)
        return len(self.versions) - 1

    def read(self, index: int, op: int, parts: Iterable[int]) -> None:
        """Note that an op reads parts of a version."""
        parts = tuple(sorted(parts))
        self._reads.append((index, op, parts))
        for part in parts:
            self.versions[index].readers[part].append(op)

    def as_tensors(self) -> tuple[list[Version], list[tuple[int, int]]]:
        """Return the tensors, each as the parts of a version that it is, and their edges.

        A tensor is all parts of a version that the same ops read. One without bytes is one.

        Examples
        --------
        Of three parts, one op reads the first two, and another one all of them:

        >>> versions = Versions()
        >>> thirds = versions.add(Version(producer=0, storage=0, bytes_of_part={0: 8, 1: 8, 2: 9}))
        >>> versions.read(thirds, 1, [0, 1])
        >>> versions.read(thirds, 2, [0, 1, 2])
        >>> tensors, edges = versions.as_tensors()
        >>> [dict(tensor.bytes_of_part) for tensor in tensors], edges
        ([{0: 8, 1: 8}, {2: 9}], [(0, 1), (0, 2), (1, 2)])
        """
        tensors: list[Version] = []
        tensor_of_part: list[dict[int, int]] = []
        for version in self.versions:
            tensor_of_part.append({})
            for sizes in version.by_readers():
                tensor_of_part[-1].update(dict.fromkeys(sizes, len(tensors)))
                tensors.append(Version(version.producer, version.storage, sizes))
        edges = [
            (tensor, op)
            for index, op, parts in self._reads
            for tensor in dict.fromkeys(tensor_of_part[index][part] for part in parts)
        ]
        return tensors, edges
