"""Scores of pairs of the current group and a device, by one network for all devices."""

from collections.abc import Callable

import torch
from torch import nn

from placeto_policy.device_costs import GROUP_FEATURES, DeviceCosts
from placeto_policy.embedding.message_passing import DIRECTIONS, MessagePassing, new_layer
from placeto_policy.errors import PolicyError
from placeto_policy.graph_features import GraphFeatures
from placeto_policy.settings import Settings
from placeto_policy.states import NOWHERE, States

WIDTH = 32  # of the embedding of a group, in each direction
RELATIONS = 3
GRAPH_FEATURES = 4  # costs and paths
LOADS = 6  # of a device: traffic with the group, work near it in time, all work and memory
TRANSFERS = 3  # of the group, if it were there
OWN = 6  # of the pair alone
LINKS = 2  # of the links that the group would use
LEFT = 2  # of groups that are not placed yet
MOST_MEMORY = 4.0  # in times the memory of a device, at which features are clipped
# Decrease of a score for each time the device's memory by which it would be too full: 5 % too full
# makes it e^15 times less probable. It is not forbidden: the memory of groups is an estimate.
OVERFLOW = 300.0
NEAREST = 1e-3  # weight of nearness, which decides between devices that are otherwise equal
# The first policy is close to uniform, whatever the graph and the seed.
OUTPUT_SCALE = 0.1


class PairScores(nn.Module):
    """Scores of the devices for the current group, for any number and kind of devices.

    The groups are embedded once for all states of a graph, by message passing in both directions
    over features that no placement changes. Each device then has features relative to the current
    group:

    - Its groups: sums of their embeddings by their relation to the current group and by traffic.
    - Loads: their work, memory, traffic with the group, and work near to it in time.
    - Transfers: the time of the group's transfers to and from there, and how busy their links are.
    - The pair: how much slower the group runs there, its work, and the memory that would be full.
    - The rest: the work and the memory of groups that are not placed yet.

    One network scores each device from these, and from the mean and the maximum over all devices
    that can run the group. A device whose memory would overflow has a lower score. Of devices that
    are otherwise equal, the one nearest to those in use has the highest score. Relabelled devices
    get the same scores, relabelled, and so does a whole rollout.
    """

    def __init__(self, settings: Settings, generator: torch.Generator) -> None:
        super().__init__()
        embedded = DIRECTIONS * WIDTH
        self.first = new_layer(GRAPH_FEATURES + GROUP_FEATURES, WIDTH, generator)
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
        return self.on_graph(states.single_graph)(states)

    def on_graph(self, graph: GraphFeatures) -> Callable[[States], torch.Tensor]:
        """Return a function from states of one graph to scores; groups are embedded once."""
        embedded = self.embedded_groups(graph)
        scale = graph.num_groups**-0.5
        related = torch.relu(self.related(embedded)).view(-1, RELATIONS, WIDTH) * scale
        return lambda states: self._scores(states, embedded, related)

    def embedded_groups(self, graph: GraphFeatures) -> torch.Tensor:
        """Return float32[G, 2 W], both directions of each group."""
        costs = costs_of(graph)
        features = [graph.cost_features, graph.path_features, costs.group_features]
        own = torch.relu(self.first(torch.cat(features, dim=1)))
        embedded: torch.Tensor = self.message_passing(own.T[:, :, None], graph)
        return embedded[:, :, 0].T

    def _scores(
        self, states: States, embedded: torch.Tensor, related: torch.Tensor
    ) -> torch.Tensor:
        """Return float32[N, D] with the embedded groups float32[G, 2 W] and [G, 3, W]."""
        there = groups_there(states)
        allowed = states.single_graph.allowed[states.current]
        held = (there * states.single_graph.memory).sum(dim=2)
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
        """Return float32[N, D, ...], the features of each device relative to the current group."""
        graph, current = states.single_graph, states.current
        seen = [embedded[current][:, None].expand(-1, graph.num_devices, -1)]
        seen.append(pair_numbers(states, there, held))
        for relation in range(RELATIONS):
            of_relation = (graph.relations[current] == relation).float()
            seen.append((of_relation[:, None] * there) @ related[:, relation])
        seen.append((graph.affinity[current][:, None] * there) @ embedded)
        return torch.cat(seen, dim=2)


def costs_of(graph: GraphFeatures) -> DeviceCosts:
    """Return the features of pairs; a graph of groups alone has none, which is an error."""
    if graph.device_costs is None:
        raise PolicyError("states: expected those of a problem, got those of groups alone")
    return graph.device_costs


def groups_there(states: States) -> torch.Tensor:
    """Return float32[N, D, G], 1 for groups on a device; the current one is on none."""
    devices = torch.arange(states.graph_features.num_devices)
    return (placed_groups(states)[:, None] == devices[:, None]).float()


def placed_groups(states: States) -> torch.Tensor:
    """Return int64[N, G], the device of each group; the current one is `NOWHERE`."""
    return states.placement.scatter(1, states.current[:, None], NOWHERE)


def full_devices(states: States, held: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D], the fraction of the memory that is full with the current group."""
    return held + states.single_graph.memory[:, states.current].T


def nearness(states: States, there: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D], the nearness of each device to those in use, and a little to all."""
    near = costs_of(states.single_graph).nearness
    used = there.any(dim=2).float()
    return used @ near / used.sum(dim=1, keepdim=True).clamp(min=1.0) + near.mean(dim=0) / 8


def pair_numbers(states: States, there: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 19], the features of each pair that need no weights.

    The groups of each device are `groups_there`, and ``held`` float32[N, D] is the fraction of the
    device's memory that they fill.
    """
    graph, costs = states.single_graph, costs_of(states.single_graph)
    near = there @ graph.near_to(states.current).swapaxes(1, 2)
    work = (there * costs.work.T).sum(dim=2)
    numbers = [
        torch.cat([near, work[:, :, None], held[:, :, None]], dim=2),
        _transfers(states, there),
        _of_pairs(states, held),
        _left(states, there, held),
    ]
    return torch.cat(numbers, dim=2)


def _transfers(states: States, there: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 5], the transfers of the current group if it moves to each device.

    These are their time, the bytes to and from other devices, and the fraction of the group's
    neighbours on the device. Two more are the busy time of its fullest link then, and of its links
    so far, weighted by its own time on them. Both are fractions of a device's share of all work.
    """
    costs, current, graph = costs_of(states.single_graph), states.current, states.single_graph
    num_devices, size = graph.num_devices, graph.num_groups
    parts = [costs.sent[current], costs.tensors[current]]
    joined = graph.incoming[current] + graph.incoming.T[current]
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
    """Return float32[N, L], the busy time of each link in mean groups, for placed groups.

    The current group counts as not placed.
    """
    costs, count = costs_of(states.single_graph), len(states)
    placement = placed_groups(states)
    sender, receiver = costs.flows
    source, target = placement[:, sender], placement[:, receiver]
    # Groups on no device have the first device's number here, and take no time.
    placed = ((source != NOWHERE) & (target != NOWHERE)).float()
    pairs = source.clamp(min=0) * states.single_graph.num_devices + target.clamp(min=0)
    seconds = costs.sent[sender, receiver] * costs.slowness.flatten()[pairs]
    seconds += costs.tensors[sender, receiver] * costs.latency.flatten()[pairs]
    busy = torch.zeros(count, costs.num_links)
    return busy.scatter_add_(1, costs.link.flatten()[pairs], seconds * placed)


def _of_pairs(states: States, held: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 6], the features of the current group on each device.

    Three are 1 if it is there now, how much slower it runs there, and its work. Three more are the
    fraction of the memory that would be full, the excess over 1, and 1 if there is an excess.
    """
    graph, current = states.single_graph, states.current
    costs = costs_of(graph)
    full = full_devices(states, held)
    now = states.placement[torch.arange(len(states)), current][:, None]
    own = [
        (now == torch.arange(graph.num_devices)).float(),
        costs.slower[current],
        torch.log1p(costs.work[current] * graph.num_groups),
        full.clamp(max=MOST_MEMORY),
        (full - 1.0).clamp(min=0.0, max=MOST_MEMORY),
        (full > 1.0).float(),
    ]
    return torch.stack(own, dim=2)


def _left(states: States, there: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 2], features of groups that are not placed, equal for all devices.

    These are their fraction of all work, and their memory as a fraction of all free memory. The
    current group is one of them.
    """
    graph = states.single_graph
    nowhere = 1.0 - there.sum(dim=1)
    work = nowhere @ graph.shares
    needs = nowhere @ graph.memory.T  # of each device's memory, if all of it were there
    free = ((1.0 - held).clamp(min=0.0) / needs.clamp(min=1e-12)).sum(dim=1)
    memory = (1.0 / free.clamp(min=1.0 / MOST_MEMORY)).clamp(max=MOST_MEMORY)
    return torch.stack([work, memory], dim=1)[:, None].expand(-1, graph.num_devices, -1)
