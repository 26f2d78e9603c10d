"""The policy network: probabilities of devices for the current group."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from placeto_policy.embedding.message_passing import GraphEmbedding, new_layer
from placeto_policy.embedding.pairs import OUTPUT_SCALE, PairScores
from placeto_policy.errors import PolicyError
from placeto_policy.graph_features import GraphFeatures
from placeto_policy.settings import Settings
from placeto_policy.states import GraphBatch, States, device_width

# A logit whose probability is 0 in float32; infinity would make the entropy NaN.
IMPOSSIBLE = -1e9


class PlacementPolicy(nn.Module):
    """A network that returns the probability of each device for the current group.

    It takes graphs of any size (Addanki et al. 2019, section 3.2).

    Parameters
    ----------
    num_devices
        Number of devices, D. With ``embedding="pairs"`` a policy is for any number, and needs none.
    settings
        Hyperparameters of the network.
    seed
        Seed of the first weights.

    Attributes
    ----------
    num_devices : int or None
        Number of devices, D, or None for any number.

    Raises
    ------
    PolicyError
        When the embedding needs a number of devices, and there is none.

    Examples
    --------
    >>> policy = PlacementPolicy(num_devices=2)
    >>> sum(parameter.numel() for parameter in policy.parameters())
    63470
    """

    def __init__(
        self, num_devices: int | None = None, settings: Settings | None = None, *, seed: int = 0
    ) -> None:
        super().__init__()
        self.settings = settings or Settings()
        generator = torch.Generator().manual_seed(seed)
        self.num_devices = None if self.settings.embedding == "pairs" else num_devices
        self.scores = (
            PairScores(self.settings, generator)
            if self.settings.embedding == "pairs"
            else DeviceScores(_checked(num_devices, self.settings), self.settings, generator)
        )

    def forward(self, states: States | Sequence[States]) -> torch.Tensor:
        """Return float32[N, D], the log-probability of each device in each of N states.

        A device that cannot run the current group has probability 0. States are of one graph, or of
        several in sequence. A problem with another number of devices raises a `PolicyError`.
        """
        batches = [states] if isinstance(states, States) else states
        return torch.cat([self.on_graph(batch.single_graph)(batch) for batch in batches])

    def on_graph(self, graph: GraphFeatures) -> Callable[[States], torch.Tensor]:
        """Return the policy for many states of one graph, which computes common parts once.

        Parameters
        ----------
        graph
            Features of the graph, of D devices.

        Returns
        -------
        callable
            Function from N states of the graph to float32[N, D], as `forward` has it.

        Raises
        ------
        PolicyError
            When the policy is for another number of devices.
        """
        self.check_devices(graph.num_devices)
        scores = self.scores.on_graph(graph)

        def log_probabilities(states: States) -> torch.Tensor:
            impossible = ~states.graph_features.allowed_of(states.current)
            return torch.log_softmax(scores(states).masked_fill(impossible, IMPOSSIBLE), dim=1)

        return log_probabilities

    def side_by_side(
        self, graphs: Sequence[GraphFeatures], counts: Sequence[int]
    ) -> Callable[[Sequence[States]], Sequence[torch.Tensor]]:
        """Return the policy for states of several graphs, which pass the network at once if small.

        Parameters
        ----------
        graphs
            Features of K graphs.
        counts
            Number of states of each graph, K numbers.

        Returns
        -------
        callable
            Function from the states of each graph to K tensors float32[N, D], one for each graph.

        Raises
        ------
        PolicyError
            When the policy is for another number of devices.
        """
        if GraphBatch.suits(graphs, counts) and isinstance(self.scores, DeviceScores):
            for graph in graphs:
                self.check_devices(graph.num_devices)
            policy_on_batch, graph_batch = self.on_graph(graphs[0]), GraphBatch(graphs, counts)

            def on_batch(states_of_graphs: Sequence[States]) -> Sequence[torch.Tensor]:
                log_probabilities = policy_on_batch(graph_batch.join(states_of_graphs))
                return torch.split(log_probabilities, list(counts))

            return on_batch
        policies = [self.on_graph(graph) for graph in graphs]

        def one_by_one(states_of_graphs: Sequence[States]) -> Sequence[torch.Tensor]:
            pairs = zip(policies, states_of_graphs, strict=True)
            return [policy(states) for policy, states in pairs]

        return one_by_one

    def check_devices(self, num_devices: int) -> None:
        """Refuse a problem with another number of devices."""
        if self.num_devices not in {None, num_devices}:
            raise PolicyError(
                f"policy: expected a problem of {self.num_devices} devices, for which it was "
                f"made, got {num_devices}"
            )


class DeviceScores(nn.Module):
    """A graph embedding, and a network of two layers with an output for each device."""

    def __init__(self, num_devices: int, settings: Settings, generator: torch.Generator) -> None:
        super().__init__()
        self.device_features = settings.device_features
        self.embedding = GraphEmbedding(num_devices, settings, generator)
        width = self.embedding.output_width + device_width(num_devices, self.device_features)
        self.hidden = new_layer(width, settings.hidden_units, generator)
        self.output = new_layer(settings.hidden_units, num_devices, generator)
        with torch.no_grad():
            self.output.weight.mul_(OUTPUT_SCALE)

    def forward(self, states: States) -> torch.Tensor:
        """Return float32[N, D], the scores of the devices in each state."""
        features = torch.cat([self.embedding(states), states.devices(self.device_features)], dim=1)
        scores: torch.Tensor = self.output(torch.relu(self.hidden(features)))
        return scores

    def on_graph(self, _: GraphFeatures) -> Callable[[States], torch.Tensor]:
        """Return itself: every computation depends on the placement."""
        return self


def _checked(num_devices: int | None, settings: Settings) -> int:
    if num_devices is None:
        raise PolicyError(
            f"num_devices: expected a number for the embedding {settings.embedding!r}, got none"
        )
    return num_devices
