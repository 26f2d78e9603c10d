"""A score for each pair of the current group and a device, by one network for all devices."""

from collections.abc import Callable

import torch
from torch import nn

from placeto_policy.device_costs import GROUP_FEATURES, DeviceCosts
from placeto_policy.embedding.message_passing import DIRECTIONS, MessagePassing, new_layer
from placeto_policy.errors import PolicyError
from placeto_policy.settings import Settings
from placeto_policy.states import NOWHERE, States
from placeto_policy.topology import Topology

WIDTH = 32  # of the embedding of a group, in each direction
RELATIONS = 3
TOPOLOGY_FEATURES = 4  # costs and paths
LOADS = 6  # of a device: traffic and concurrent work near the group, and all work and memory
TRANSFERS = 3  # of the group, if it were there
OWN = 6  # of the pair alone
LINKS = 2  # of the links that the group would use
LEFT = 2  # of what is not placed yet
MOST_MEMORY = 4.0  # times that of a device: beyond it, all is one
# Taken from a score for each time the device's memory by which it would be too full: 5 % too much
# makes it e^15 times less likely. It is not forbidden, as what groups hold is an estimate.
OVERFLOW = 300.0
NEAREST = 1e-3  # weight of how near devices are: it decides between those that look the same else
# The first policy is close to uniform, whatever the graph and the seed.
OUTPUT_SCALE = 0.1


class PairScores(nn.Module):
    """Scores how good each device is for the current group, whatever devices there are.

    The groups are embedded once for all states of a graph, by message passing in both directions
    over what does not change with the placement. A device is then seen as the current group sees
    it: the groups there, summed over the groups that can reach the current one, that it can reach,
    and neither, and by their part in its traffic; the work and memory there already; the time of
    the transfers to and from there, and how busy their links are; how much slower the group runs
    there; the memory that would be left; and how much is not placed yet, which is nowhere. One
    network scores each device from that and from the mean and the maximum over all devices that
    can run the group. The score of a device whose memory would overflow is lowered by how much it
    would. Of devices that look the same else, the one nearest to those in use has the highest
    score. So devices that are relabelled get the same scores, relabelled, and with them a whole
    rollout.

    Parameters
    ----------
    settings
        Number of rounds of message passing and of hidden units.
    generator
        Generator of the first weights.

    Examples
    --------
    >>> from placeto_policy import preset
    >>> scores = PairScores(preset("general"), torch.Generator())
    >>> sum(parameter.numel() for parameter in scores.parameters())
    71489
    """

    def __init__(self, settings: Settings, generator: torch.Generator) -> None:
        super().__init__()
        embedded = DIRECTIONS * WIDTH
        self.first = new_layer(TOPOLOGY_FEATURES + GROUP_FEATURES, WIDTH, generator)
        self.message_passing = MessagePassing(WIDTH, settings.message_rounds, generator)
        self.related = new_layer(embedded, RELATIONS * WIDTH, generator)
        numbers = LOADS + TRANSFERS + OWN + LINKS + LEFT
        seen = embedded + numbers + RELATIONS * WIDTH + embedded
        units = settings.hidden_units
        self.device = new_layer(seen, units, generator)
        self.device_again = new_layer(units, units, generator)
        self.compare = new_layer(3 * units, units, generator)
        self.score = new_layer(units, 1, generator)
        with torch.no_grad():
            self.score.weight.mul_(OUTPUT_SCALE)

    def forward(self, states: States) -> torch.Tensor:
        """Return float32[N, D], the scores of all devices in each state."""
        return self.on_graph(states.graph)(states)

    def on_graph(self, topology: Topology) -> Callable[[States], torch.Tensor]:
        """Return what scores the devices in states of one graph, whose groups are embedded once."""
        embedded = self.embedded_groups(topology)
        scale = topology.num_groups**-0.5
        related = torch.relu(self.related(embedded)).view(-1, RELATIONS, WIDTH) * scale
        return lambda states: self._scores(states, embedded, related)

    def embedded_groups(self, topology: Topology) -> torch.Tensor:
        """Return float32[G, 2 W], both directions of each group."""
        costs = costs_of(topology)
        features = [topology.cost_features, topology.path_features, costs.group_features]
        own = torch.relu(self.first(torch.cat(features, dim=1)))
        embedded: torch.Tensor = self.message_passing(own.T[:, :, None], topology)
        return embedded[:, :, 0].T

    def _scores(
        self, states: States, embedded: torch.Tensor, related: torch.Tensor
    ) -> torch.Tensor:
        """Return float32[N, D] with the embedded groups float32[G, 2 W] and [G, 3, W]."""
        there = groups_there(states)
        allowed = states.graph.allowed[states.current]
        held = (there * states.graph.memory).sum(dim=2)
        seen = self._seen(states, there, held, embedded, related)
        devices = torch.relu(self.device_again(torch.relu(self.device(seen))))
        devices = devices.masked_fill(~allowed[:, :, None], 0.0)
        mean = devices.sum(dim=1, keepdim=True) / allowed.sum(dim=1)[:, None, None]
        most = devices.amax(dim=1, keepdim=True)  # of at least 0: they come from a ReLU
        compared = torch.cat([devices, mean.expand_as(devices), most.expand_as(devices)], dim=2)
        scores: torch.Tensor = self.score(torch.relu(self.compare(compared))).squeeze(2)
        too_full = (full_devices(states, held) - 1.0).clamp(min=0.0, max=MOST_MEMORY)
        return scores + NEAREST * nearness(states, there) - OVERFLOW * too_full

    def _seen(
        self,
        states: States,
        there: torch.Tensor,
        held: torch.Tensor,
        embedded: torch.Tensor,
        related: torch.Tensor,
    ) -> torch.Tensor:
        """Return float32[N, D, ...], each device as the current group of each state sees it."""
        topology, current = states.graph, states.current
        seen = [embedded[current][:, None].expand(-1, topology.num_devices, -1)]
        seen.append(pair_numbers(states, there, held))
        for relation in range(RELATIONS):
            of_relation = (topology.relations[current] == relation).float()
            seen.append((of_relation[:, None] * there) @ related[:, relation])
        seen.append((topology.affinity[current][:, None] * there) @ embedded)
        return torch.cat(seen, dim=2)


def costs_of(topology: Topology) -> DeviceCosts:
    """Return what pairs of groups and devices are judged by, which groups alone do not have."""
    if topology.device_costs is None:
        raise PolicyError("states: expected those of a problem, got those of groups alone")
    return topology.device_costs


def groups_there(states: States) -> torch.Tensor:
    """Return float32[N, D, G], 1 where a group is on a device; the current one is nowhere."""
    devices = torch.arange(states.topology.num_devices)
    return (placed_groups(states)[:, None] == devices[:, None]).float()


def placed_groups(states: States) -> torch.Tensor:
    """Return int64[N, G], the device of each group, the current one of which is nowhere."""
    return states.placement.scatter(1, states.current[:, None], NOWHERE)


def full_devices(states: States, held: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D], which part of the memory is full with the current group there."""
    return held + states.graph.memory[:, states.current].T


def nearness(states: States, there: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D], how near each device is to those in use, and a little to all."""
    near = costs_of(states.graph).nearness
    used = there.any(dim=2).float()
    return used @ near / used.sum(dim=1, keepdim=True).clamp(min=1.0) + near.mean(dim=0) / 8


def pair_numbers(states: States, there: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 19], what is known of each pair without any weights.

    Parameters
    ----------
    states
        N states of one graph.
    there : float32[N, D, G]
        Where the groups are; see `groups_there`.
    held : float32[N, D]
        Part of each device's memory that they fill.
    """
    topology, costs = states.graph, costs_of(states.graph)
    near = there @ topology.near_to(states.current).swapaxes(1, 2)
    work = (there * costs.work.T).sum(dim=2)
    numbers = [
        torch.cat([near, work[:, :, None], held[:, :, None]], dim=2),
        _transfers(states, there),
        _of_pairs(states, held),
        _left(states, there, held),
    ]
    return torch.cat(numbers, dim=2)


def _transfers(states: States, there: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 5], what the current group sends and reads if it goes to each device.

    That is: how long it takes; how much goes to other devices at all; the part of the group's
    neighbours that are there; and how long the fullest of the links that it takes is then busy, and
    how long they are so far, weighted by its own time on them: both as fractions of a device's part
    of all work.
    """
    costs, current, topology = costs_of(states.graph), states.current, states.graph
    num_devices, size = topology.num_devices, topology.num_groups
    parts = [costs.sent[current], costs.tensors[current]]
    joined = topology.hears[current] + topology.hears.T[current]
    parts += [costs.sent.T[current], costs.tensors.T[current], joined]
    out, out_tensors, into, into_tensors, neighbours = torch.unbind(
        there @ torch.stack(parts, dim=2), dim=2
    )
    # From each device to where the group would be read, and back: [N, D, D]
    sends = out[:, None] * costs.slowness + out_tensors[:, None] * costs.latency
    reads = into[:, None] * costs.slowness.T + into_tensors[:, None] * costs.latency.T
    apart = ~torch.eye(num_devices, dtype=torch.bool)
    sent = (out + into) @ (apart & (costs.slowness > 0)).float()
    connected = joined.sum(dim=1, keepdim=True).clamp(min=1.0)
    taken = sends.sum(dim=2) + reads.sum(dim=2)
    busy = link_seconds(states)
    added = torch.zeros(len(states), num_devices, costs.num_links)
    shape = (len(states), num_devices, num_devices)
    added.scatter_add_(2, costs.link.expand(shape), sends)
    added.scatter_add_(2, costs.link.T.expand(shape), reads)
    fullest = ((busy[:, None] + added) * (added > 0)).amax(dim=2)
    before = (added * busy[:, None]).sum(dim=2) / taken.clamp(min=1e-30)
    share = num_devices / size
    numbers = [torch.log1p(taken), torch.log1p(sent), neighbours / connected]
    numbers += [torch.log1p(share * fullest), torch.log1p(share * before)]
    return torch.stack(numbers, dim=2)


def link_seconds(states: States) -> torch.Tensor:
    """Return float32[N, L], mean groups that each link is busy with what is placed already.

    The current group counts as not placed.
    """
    costs, count = costs_of(states.graph), len(states)
    placement = placed_groups(states)
    sender, receiver = costs.flows
    source, target = placement[:, sender], placement[:, receiver]
    # What is nowhere has the first device's number here, and takes no time.
    placed = ((source != NOWHERE) & (target != NOWHERE)).float()
    pairs = source.clamp(min=0) * states.graph.num_devices + target.clamp(min=0)
    seconds = costs.sent[sender, receiver] * costs.slowness.flatten()[pairs]
    seconds += costs.tensors[sender, receiver] * costs.latency.flatten()[pairs]
    busy = torch.zeros(count, costs.num_links)
    return busy.scatter_add_(1, costs.link.flatten()[pairs], seconds * placed)


def _of_pairs(states: States, held: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 6] of the current group on each device.

    Whether it is there now, how much slower it runs there, its work, what part of the memory would
    be full, by how much it would be too full, and whether it would.
    """
    topology, current = states.graph, states.current
    costs = costs_of(topology)
    full = full_devices(states, held)
    now = states.placement[torch.arange(len(states)), current][:, None]
    own = [
        (now == torch.arange(topology.num_devices)).float(),
        costs.slower[current],
        torch.log1p(costs.work[current] * topology.num_groups),
        full.clamp(max=MOST_MEMORY),
        (full - 1.0).clamp(min=0.0, max=MOST_MEMORY),
        (full > 1.0).float(),
    ]
    return torch.stack(own, dim=2)


def _left(states: States, there: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 2], the same for all devices: what is not placed, the current group too.

    Its part of all work, and what it keeps in memory as a fraction of all memory that is free.
    """
    topology = states.graph
    nowhere = 1.0 - there.sum(dim=1)
    work = nowhere @ topology.shares
    needs = nowhere @ topology.memory.T  # of each device's memory, if all of it were there
    free = ((1.0 - held).clamp(min=0.0) / needs.clamp(min=1e-12)).sum(dim=1)
    memory = (1.0 / free.clamp(min=1.0 / MOST_MEMORY)).clamp(max=MOST_MEMORY)
    return torch.stack([work, memory], dim=1)[:, None].expand(-1, topology.num_devices, -1)
