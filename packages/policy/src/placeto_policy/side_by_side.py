"""Several graphs side by side, so that a network computes states of all of them at once."""

from collections.abc import Sequence

import torch

from placeto_policy.states import States
from placeto_policy.topology import NO_RELATION, Topology

# Numbers in the matrices of all states: beyond, the products take longer than to begin them.
MOST_NUMBERS = 2**21


class SideBySide:
    """K graphs of up to G groups on D devices, with some states of each: `Topology` of a batch.

    Graphs with fewer groups have some more that are on no device, that nothing is known of, and
    that no message comes from.

    Parameters
    ----------
    topologies
        The graphs.
    counts
        How many states there are of each, N in all.

    Examples
    --------
    >>> from placeto_policy.example import two_chains
    >>> from placeto_policy.topology import topology_of
    >>> several = SideBySide([topology_of(two_chains())] * 2, counts=[1, 2])
    >>> several.allowed_of(torch.tensor([0, 0, 5])).shape
    torch.Size([3, 2])
    """

    def __init__(self, topologies: Sequence[Topology], counts: Sequence[int]) -> None:
        self.num_devices = topologies[0].num_devices
        self.num_groups = max(topology.num_groups for topology in topologies)
        self._topologies = topologies
        self._of_state = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        every = [(each, torch.arange(each.num_groups)) for each in topologies]
        self._relations = _stacked([each.relations_of(all_) for each, all_ in every], NO_RELATION)
        self._near = _stacked([each.near_to(all_) for each, all_ in every])
        self._allowed = _stacked([each.allowed_of(all_) for each, all_ in every])
        self._held = [
            _stacked([each.held_by(device)[0] for each in topologies])[self._of_state]
            for device in range(self.num_devices)
        ]
        self.group_counts = torch.cat([each.group_counts for each in topologies])[self._of_state]
        self._heard: dict[bool, list[torch.Tensor]] = {}
        self._constants: dict[bool, torch.Tensor] = {}

    @staticmethod
    def suits(topologies: Sequence[Topology], counts: Sequence[int]) -> bool:
        """Return whether it is quicker to compute these side by side."""
        largest = max(topology.num_groups for topology in topologies)
        return len(topologies) > 1 and sum(counts) * largest**2 <= MOST_NUMBERS

    def join(self, parts: Sequence[States]) -> States:
        """Return the states of all graphs as one batch."""
        lookaheads = [part.lookahead for part in parts if part.lookahead is not None]
        schedules = [part.schedule for part in parts if part.schedule is not None]
        return States(
            topology=self,
            placement=self._joined([part.placement for part in parts], -1),
            current=torch.cat([part.current for part in parts]),
            visited=self._joined([part.visited for part in parts]),
            lookahead=torch.cat(lookaheads) if lookaheads else None,
            schedule=self._joined(schedules) if schedules else None,
        )

    def constant_features(self, *, with_paths: bool) -> torch.Tensor:
        """Return float32[..., G, N]; see `Topology.constant_features`."""
        if with_paths not in self._constants:
            every = [each.constant_features(with_paths=with_paths) for each in self._topologies]
            stacked = _stacked(every)[self._of_state]
            self._constants[with_paths] = stacked.squeeze(3).permute(1, 2, 0).contiguous()
        return self._constants[with_paths]

    def heard(self, *, scaled: bool) -> list[torch.Tensor]:
        """Return float32[N, G, G] for each direction; see `Topology.heard`."""
        if scaled not in self._heard:
            every = [each.heard(scaled=scaled) for each in self._topologies]
            directions = zip(*every, strict=True)
            self._heard[scaled] = [_stacked(each)[self._of_state] for each in directions]
        return self._heard[scaled]

    def relations_of(self, current: torch.Tensor) -> torch.Tensor:
        """Return int8[N, G]; see `Topology.relations_of`."""
        return self._relations[self._of_state, current]

    def near_to(self, current: torch.Tensor) -> torch.Tensor:
        """Return float32[N, 1 + S, G]; see `Topology.near_to`."""
        return self._near[self._of_state, current]

    def held_by(self, device: int) -> torch.Tensor:
        """Return float32[N, 2, G]; see `Topology.held_by`."""
        return self._held[device]

    def allowed_of(self, current: torch.Tensor) -> torch.Tensor:
        """Return bool[N, D]; see `Topology.allowed_of`."""
        return self._allowed[self._of_state, current]

    def _joined(self, parts: Sequence[torch.Tensor], nothing: int = 0) -> torch.Tensor:
        """Return [N, G, ...] of parts with fewer groups."""
        count = len(self._of_state)
        joined = parts[0].new_full((count, self.num_groups, *parts[0].shape[2:]), nothing)
        first = 0
        for part in parts:
            joined[first : first + len(part), : part.shape[1]] = part
            first += len(part)
        return joined


def _stacked(parts: Sequence[torch.Tensor], nothing: int = 0) -> torch.Tensor:
    """Return tensors of several sizes as one, each filled up to the largest."""
    shape = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]
    stacked = parts[0].new_full((len(parts), *shape), nothing)
    for whole, part in zip(stacked, parts, strict=True):
        whole[tuple(map(slice, part.shape))] = part
    return stacked
