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
PAIR = 6  # of the pair alone
LINKS = 2  # of the links that the group would use
UNPLACED = 2  # of groups that are not placed yet
MAX_MEMORY = 4.0  # in times the memory of a device, at which features are clipped
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
        pair_width = LOADS + TRANSFERS + PAIR + LINKS + UNPLACED
        width = embedded + pair_width + RELATIONS * WIDTH + embedded
        units = settings.hidden_units
        self.device = new_layer(width, units, generator)
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
        nodes = torch.relu(self.first(torch.cat(features, dim=1)))
        embedded: torch.Tensor = self.message_passing(nodes.T[:, :, None], graph)
        return embedded[:, :, 0].T

    def _scores(
        self, states: States, embedded: torch.Tensor, related: torch.Tensor
    ) -> torch.Tensor:
        """Return float32[N, D] with the embedded groups float32[G, 2 W] and [G, 3, W]."""
        on_device = groups_on_devices(states)
        allowed = states.single_graph.allowed[states.current]
        used_memory = (on_device * states.single_graph.memory).sum(dim=2)
        features = self._device_features(states, on_device, used_memory, embedded, related)
        devices = torch.relu(self.device_again(torch.relu(self.device(features))))
        devices = devices.masked_fill(~allowed[:, :, None], 0.0)
        mean = devices.sum(dim=1, keepdim=True) / allowed.sum(dim=1)[:, None, None]
        maximum = devices.amax(dim=1, keepdim=True)  # of at least 0: they come from a ReLU
        compared = torch.cat([devices, mean.expand_as(devices), maximum.expand_as(devices)], dim=2)
        scores: torch.Tensor = self.score(torch.relu(self.compare(compared))).squeeze(2)
        excess_memory = (full_devices(states, used_memory) - 1.0).clamp(min=0.0, max=MAX_MEMORY)
        return scores + NEAREST * nearness(states, on_device) - OVERFLOW * excess_memory

    def _device_features(
        self,
        states: States,
        on_device: torch.Tensor,
        used_memory: torch.Tensor,
        embedded: torch.Tensor,
        related: torch.Tensor,
    ) -> torch.Tensor:
        """Return float32[N, D, ...], the features of each device relative to the current group."""
        graph, current = states.single_graph, states.current
        features = [embedded[current][:, None].expand(-1, graph.num_devices, -1)]
        features.append(pair_features(states, on_device, used_memory))
        for relation in range(RELATIONS):
            of_relation = (graph.relations[current] == relation).float()
            features.append((of_relation[:, None] * on_device) @ related[:, relation])
        features.append((graph.affinity[current][:, None] * on_device) @ embedded)
        return torch.cat(features, dim=2)


def costs_of(graph: GraphFeatures) -> DeviceCosts:
    """Return the features of pairs; a graph of groups alone has none, which is an error."""
    if graph.device_costs is None:
        raise PolicyError("states: expected those of a problem, got those of groups alone")
    return graph.device_costs


def groups_on_devices(states: States) -> torch.Tensor:
    """Return float32[N, D, G], 1 for groups on a device; the current one is on none."""
    devices = torch.arange(states.graph_features.num_devices)
    return (placed_groups(states)[:, None] == devices[:, None]).float()


def placed_groups(states: States) -> torch.Tensor:
    """Return int64[N, G], the device of each group; the current one is `NOWHERE`."""
    return states.placement.scatter(1, states.current[:, None], NOWHERE)


def full_devices(states: States, used_memory: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D], the fraction of the memory that is full with the current group."""
    return used_memory + states.single_graph.memory[:, states.current].T


def nearness(states: States, on_device: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D], the nearness of each device to those in use, and a little to all."""
    device_nearness = costs_of(states.single_graph).nearness
    used = on_device.any(dim=2).float()
    to_used = used @ device_nearness / used.sum(dim=1, keepdim=True).clamp(min=1.0)
    return to_used + device_nearness.mean(dim=0) / 8


def pair_features(
    states: States, on_device: torch.Tensor, used_memory: torch.Tensor
) -> torch.Tensor:
    """Return float32[N, D, 19], the features of each pair that need no weights.

    The groups of each device are `groups_on_devices`, and ``used_memory`` float32[N, D] is the
    fraction of the device's memory that they fill.
    """
    graph, costs = states.single_graph, costs_of(states.single_graph)
    nearby_work = on_device @ graph.near_to(states.current).swapaxes(1, 2)
    work = (on_device * costs.work.T).sum(dim=2)
    features = [
        torch.cat([nearby_work, work[:, :, None], used_memory[:, :, None]], dim=2),
        _transfers(states, on_device),
        _pair_alone(states, used_memory),
        _unplaced(states, on_device, used_memory),
    ]
    return torch.cat(features, dim=2)


def _transfers(states: States, on_device: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 5], the transfers of the current group if it moves to each device.

    These are their time, the bytes to and from other devices, and the fraction of the group's
    neighbours on the device. Two more are the busy time of its fullest link then, and of its links
    so far, weighted by its own time on them. Both are fractions of a device's share of all work.
    """
    costs, current, graph = costs_of(states.single_graph), states.current, states.single_graph
    num_devices, size = graph.num_devices, graph.num_groups
    is_neighbour = graph.incoming[current] + graph.incoming.T[current]
    traffic = [
        costs.sent[current],
        costs.tensors[current],
        costs.sent.T[current],
        costs.tensors.T[current],
        is_neighbour,
    ]
    out, out_tensors, into, into_tensors, neighbours = torch.unbind(
        on_device @ torch.stack(traffic, dim=2), dim=2
    )
    # From each device to where the group would be read, and back: [N, D, D]
    sends = out[:, None] * costs.slowness + out_tensors[:, None] * costs.latency
    reads = into[:, None] * costs.slowness.T + into_tensors[:, None] * costs.latency.T
    apart = ~torch.eye(num_devices, dtype=torch.bool)
    sent_bytes = (out + into) @ (apart & (costs.slowness > 0)).float()
    num_neighbours = is_neighbour.sum(dim=1, keepdim=True).clamp(min=1.0)
    seconds = sends.sum(dim=2) + reads.sum(dim=2)
    busy = link_seconds(states)
    added_seconds = torch.zeros(len(states), num_devices, costs.num_links)
    shape = (len(states), num_devices, num_devices)
    added_seconds.scatter_add_(2, costs.link.expand(shape), sends)
    added_seconds.scatter_add_(2, costs.link.T.expand(shape), reads)
    fullest = ((busy[:, None] + added_seconds) * (added_seconds > 0)).amax(dim=2)
    mean_busy = (added_seconds * busy[:, None]).sum(dim=2) / seconds.clamp(min=1e-30)
    share = num_devices / size
    features = [
        torch.log1p(seconds),
        torch.log1p(sent_bytes),
        neighbours / num_neighbours,
        torch.log1p(share * fullest),
        torch.log1p(share * mean_busy),
    ]
    return torch.stack(features, dim=2)


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


def _pair_alone(states: States, used_memory: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 6], the features of the current group on each device.

    Three are 1 if it is there now, how much slower it runs there, and its work. Three more are the
    fraction of the memory that would be full, the excess over 1, and 1 if there is an excess.
    """
    graph, current = states.single_graph, states.current
    costs = costs_of(graph)
    full = full_devices(states, used_memory)
    present_device = states.placement[torch.arange(len(states)), current][:, None]
    features = [
        (present_device == torch.arange(graph.num_devices)).float(),
        costs.slower[current],
        torch.log1p(costs.work[current] * graph.num_groups),
        full.clamp(max=MAX_MEMORY),
        (full - 1.0).clamp(min=0.0, max=MAX_MEMORY),
        (full > 1.0).float(),
    ]
    return torch.stack(features, dim=2)


def _unplaced(states: States, on_device: torch.Tensor, used_memory: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 2], features of groups that are not placed, equal for all devices.

    These are their fraction of all work, and their memory as a fraction of all free memory. The
    current group is one of them.
    """
    graph = states.single_graph
    is_unplaced = 1.0 - on_device.sum(dim=1)
    work = is_unplaced @ graph.shares
    unplaced_memory = is_unplaced @ graph.memory.T  # in times each device's memory
    free = ((1.0 - used_memory).clamp(min=0.0) / unplaced_memory.clamp(min=1e-12)).sum(dim=1)
    memory = (1.0 / free.clamp(min=1.0 / MAX_MEMORY)).clamp(max=MAX_MEMORY)
    return torch.stack([work, memory], dim=1)[:, None].expand(-1, graph.num_devices, -1)
