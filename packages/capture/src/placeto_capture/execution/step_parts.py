"""The bytes that the tensors of a step are, as numbered parts of its storages."""

from collections import Counter, defaultdict
from collections.abc import Collection

from placeto_capture.tracing.op_graph import TensorsOfTrace
from placeto_capture.tracing.trace import Placeholder, Trace, View


class StepParts:
    """The parts of all storages of a step, numbered through.

    Versions of a part that ops make of each other are the same memory.

    Parameters
    ----------
    trace
        The step.
    tensors
        The tensors of its graph.

    Attributes
    ----------
    views : list of `View`
        The bytes of each part.
    num_bytes : list of int
        How many they are.
    of_storage : dict of int to list of int
        The parts of each storage.
    of_tensor : list of tuple of int
        The parts that each tensor of the graph is. What an optimizer keeps for a weight belongs to
        the weight's first tensor.
    last_op : dict of int to int
        Which op is the last one that makes each part; what no op makes is not there.
    made_by_several : set of int
        The storages of which several ops make something.
    """

    def __init__(self, trace: Trace, tensors: TensorsOfTrace) -> None:
        self.views: list[View] = []
        self.num_bytes: list[int] = []
        self.of_storage: defaultdict[int, list[int]] = defaultdict(list)
        for storage in range(len(trace.storage_bytes)):
            for view in tensors.parts.parts(storage):
                self.of_storage[storage].append(len(self.views))
                self.views.append(view)
                self.num_bytes.append(view.num_bytes)
        self.of_tensor: list[tuple[int, ...]] = []
        with_state: set[int] = set()  # placeholders
        for version in tensors.made:
            parts: list[int] = []
            if version.storage is not None:
                parts += [self.of_storage[version.storage][part] for part in version.bytes_of_part]
            placeholder = trace.ops[version.producer]
            if isinstance(placeholder, Placeholder) and version.producer not in with_state:
                with_state.add(version.producer)
                for storage in placeholder.storages[1:]:
                    parts += self.of_storage[storage]
            self.of_tensor.append(tuple(parts))
        self.last_op = {
            part: version.producer
            for version, parts in zip(tensors.made, self.of_tensor, strict=True)
            for part in parts
        }

        made = {
            (self.views[part].storage, version.producer)
            for version, parts in zip(tensors.made, self.of_tensor, strict=True)
            for part in parts
        }
        ops_of_storage = Counter(storage for storage, _ in made)
        self.made_by_several = {storage for storage, ops in ops_of_storage.items() if ops > 1}

    def storages_of(self, tensors: Collection[int]) -> set[int]:
        """Return the storages of which some tensors are parts."""
        return {self.views[part].storage for tensor in tensors for part in self.of_tensor[tensor]}
