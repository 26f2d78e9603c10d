"""A score for each pair of the current group and a device, by one network for all devices."""

from collections.abc import Callable

import torch
from torch import nn

from placeto_policy.device_costs import GROUP_FEATURES, DeviceCosts
from placeto_policy.embedding.layers import new_layer
from placeto_policy.errors import PolicyError
from placeto_policy.settings import Settings
from placeto_policy.states import States, asked
from placeto_policy.topology import Topology

WIDTH = 32  # of the embedding of a group, in each direction
DIRECTIONS = 2
RELATIONS = 3
TOPOLOGY_FEATURES = 4  # costs and paths
LOADS = 6  # of a device: traffic and concurrent work near the group, and all work and memory
TRANSFERS = 3  # of the group, if it were there
OWN = 6  # of the pair alone
LOOKAHEAD = 2
MOST_MEMORY = 4.0  # times that of a device: beyond it, all is one
# The first policy is close to uniform, whatever the graph and the seed.
OUTPUT_SCALE = 0.1


class PairScores(nn.Module):
    """Scores how good each device is for the current group, whatever devices there are.

    The groups are embedded once for all states of a batch, by message passing in both directions
    over what does not change with the placement. A device is then seen as the current group sees
    it: what groups are there (all of them, and those that were visited), summed over the groups
    that can reach the current one, that it can reach, and neither, and by their part in its
    traffic; what runs there already; what the transfers to and from there would take, over the
    links as they are; how much slower the group runs there; what memory would be left; and what
    the evaluator says. One network scores each device from that and from the mean and the maximum
    over all devices that can run the group. So devices that are relabelled get the same scores,
    relabelled.

    Parameters
    ----------
    settings
        How many rounds of message passing, hidden units, and whether it looks ahead.
    generator
        Of the first weights.

    Examples
    --------
    >>> from placeto_policy import preset
    >>> scores = PairScores(preset("general"), torch.Generator())
    >>> sum(parameter.numel() for parameter in scores.parameters())
    71873
    """

    def __init__(self, settings: Settings, generator: torch.Generator) -> None:
        super().__init__()
        self.rounds = settings.message_rounds
        self.looks_ahead = settings.sees_lookahead
        embedded = DIRECTIONS * WIDTH
        self.first = new_layer(TOPOLOGY_FEATURES + GROUP_FEATURES, WIDTH, generator)
        self.messages = _layers(DIRECTIONS, generator)
        self.updates = _layers(DIRECTIONS, generator)
        self.related = new_layer(embedded, RELATIONS * WIDTH, generator)
        numbers = 2 * (LOADS + TRANSFERS) + OWN + LOOKAHEAD * self.looks_ahead
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
        return lambda states: self._scores(states, embedded)

    def _scores(self, states: States, embedded: torch.Tensor) -> torch.Tensor:
        """Return float32[N, D] with the embedded groups float32[G, 2 W]."""
        allowed = states.graph.allowed[states.current]
        devices = self._devices(states, embedded).masked_fill(~allowed[:, :, None], 0.0)
        mean = devices.sum(dim=1, keepdim=True) / allowed.sum(dim=1)[:, None, None]
        most = devices.amax(dim=1, keepdim=True)  # of at least 0: they come from a ReLU
        compared = torch.cat([devices, mean.expand_as(devices), most.expand_as(devices)], dim=2)
        scores: torch.Tensor = self.score(torch.relu(self.compare(compared))).squeeze(2)
        return scores

    def embedded_groups(self, topology: Topology) -> torch.Tensor:
        """Return float32[G, 2 W], both directions of each group."""
        features = [
            topology.cost_features,
            topology.path_features,
            _costs(topology).group_features,
        ]
        own = torch.relu(self.first(torch.cat(features, dim=1)))
        before = (topology.relations == 0) & (_costs(topology).connected > 0)
        found = []
        for direction, heard in enumerate((before, before.T)):
            message, update = self.messages[direction], self.updates[direction]
            from_neighbours = heard.float() * float(topology.message_scale)
            groups = own
            for _ in range(self.rounds):
                groups = own + torch.relu(update(from_neighbours @ torch.relu(message(groups))))
            found.append(groups)
        return torch.cat(found, dim=1)

    def _devices(self, states: States, embedded: torch.Tensor) -> torch.Tensor:
        """Return float32[N, D, units], each device as the current group of each state sees it."""
        topology, current = states.graph, states.current
        count, num_devices = len(states), topology.num_devices
        others = nn.functional.one_hot(states.placement, num_devices).float()
        others[torch.arange(count), current] = 0.0
        there = others.swapaxes(1, 2)
        related = torch.relu(self.related(embedded)).view(-1, RELATIONS, WIDTH)
        scale = topology.num_groups**-0.5
        seen = [embedded[current][:, None].expand(-1, num_devices, -1)]
        seen.append(_numbers(states, others, looks_ahead=self.looks_ahead))
        for relation in range(RELATIONS):
            of_relation = (topology.relations[current] == relation).float()
            seen.append((of_relation[:, None] * there) @ related[:, relation] * scale)
        seen.append((topology.affinity[current][:, None] * there) @ embedded)
        first = torch.relu(self.device(torch.cat(seen, dim=2)))
        return torch.relu(self.device_again(first))


def _layers(count: int, generator: torch.Generator) -> nn.ModuleList:
    return nn.ModuleList(new_layer(WIDTH, WIDTH, generator) for _ in range(count))


def _costs(topology: Topology) -> DeviceCosts:
    if topology.device_costs is None:
        raise PolicyError("states: expected those of a problem, got those of groups alone")
    return topology.device_costs


def _numbers(states: States, others: torch.Tensor, *, looks_ahead: bool) -> torch.Tensor:
    """Return float32[N, D, ...], what is known of each pair without any weights.

    Parameters
    ----------
    states
        N states.
    others : float32[N, G, D]
        Where the groups are, but for the current ones.
    looks_ahead
        Whether the evaluator was asked.
    """
    visited = others * states.visited[:, :, None]
    numbers = [_loads(states, others), _loads(states, visited)]
    numbers += [_transfers(states, others), _transfers(states, visited)]
    numbers.append(_of_pairs(states, others))
    if looks_ahead:
        more = asked(states.lookahead, "device_features", "loads-and-lookahead")
        numbers.append(torch.stack([more, (more <= 0).float()], dim=2))
    return torch.cat(numbers, dim=2)


def _loads(states: States, there: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 6], what each device holds, near the current group and in all."""
    topology = states.graph
    near = topology.near_to(states.current)
    work = torch.einsum("ngd,gd->nd", there, _costs(topology).work)
    memory = torch.einsum("ngd,dg->nd", there, topology.memory)
    return torch.cat([(near @ there).swapaxes(1, 2), torch.stack([work, memory], dim=2)], dim=2)


def _transfers(states: States, there: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 3], what the current group sends and reads if it goes to each device.

    That is: how long it takes; how much goes to other devices at all; and the part of the group's
    neighbours that are there.
    """
    costs = _costs(states.graph)
    connected = costs.connected[states.current]
    traffic = (costs.transfers[states.current, None] @ there).squeeze(1)
    neighbours = (connected[:, None] @ there).squeeze(1)
    taken = traffic @ costs.slowness + neighbours @ costs.latency
    sent = traffic @ (costs.slowness > 0).float()
    near = neighbours / connected.sum(dim=1, keepdim=True).clamp(min=1.0)
    return torch.stack([torch.log1p(taken), torch.log1p(sent), near], dim=2)


def _of_pairs(states: States, others: torch.Tensor) -> torch.Tensor:
    """Return float32[N, D, 6] of the current group on each device.

    Whether it is there now, how much slower it runs there, its work, what part of the memory would
    be full, by how much it would be too full, and whether it would.
    """
    topology, current = states.graph, states.current
    costs = _costs(topology)
    full = torch.einsum("ngd,dg->nd", others, topology.memory) + topology.memory[:, current].T
    devices = torch.arange(topology.num_devices)
    now = states.placement[torch.arange(len(states)), current][:, None] == devices
    own = [
        now.float(),
        costs.slower[current],
        torch.log1p(costs.work[current] * topology.num_groups),
        full.clamp(max=MOST_MEMORY),
        (full - 1.0).clamp(min=0.0, max=MOST_MEMORY),
        (full > 1.0).float(),
    ]
    return torch.stack(own, dim=2)
