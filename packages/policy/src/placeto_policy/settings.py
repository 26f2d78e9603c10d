"""Hyperparameters of a policy and of its training, with the sources of their values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin

from placeto_graphs import SECONDS_PER_BYTE
from placeto_policy.errors import PolicyError, short_repr

EmbeddingName = Literal["pairs", "message-passing", "simple-partitioner", "simple-aggregator"]
RewardName = Literal["counterfactual", "intermediate", "terminal"]
NodeFeaturesName = Literal["costs", "costs-and-times", "costs-times-and-schedule"]
DeviceFeaturesName = Literal["none", "loads", "loads-and-lookahead"]
AdvantageScaleName = Literal["none", "spread"]
EntropyControlName = Literal["weight", "target"]
SelectionName = Literal["best", "last"]
MessageName = Literal["plain", "residual"]
OrderName = Literal["topological", "random"]
StartName = Literal["single", "random"]

UPDATES_BETWEEN_VALIDATIONS = 10
MAY_BE_ZERO = {
    "learning_rate_end",
    "entropy_weight_start",
    "entropy_weight_end",
    "memory_penalty",
    "message_rounds",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The hyperparameters of a policy and of its training.

    Values marked (paper) are stated in Addanki et al. 2019. Those marked (code) are in the code
    that its authors published, or in its list of hyperparameters. docs/settings.md has the source
    of each value, and `preset` returns those of the published method.

    Attributes
    ----------
    embedding : text
        ``"message-passing"`` (paper) or one of its ablations, ``"simple-partitioner"`` and
        ``"simple-aggregator"``, for a fixed number of devices. ``"pairs"`` scores each pair of the
        current group and a device, for any number of devices of any kind; see `PairScores`. It has
        features and messages of its own, and ignores the settings of the others.
    message_rounds : int
        Number of rounds of message passing, k = 8 (code).
    messages : text
        ``"plain"``: a round replaces the features of a node by a function of the sum over its
        neighbours (paper). ``"residual"``: it adds that to the first features of the node, and
        divides sums by the number of edges per group. The code adds a transformed vector.
    hidden_units : int
        Number of units of the hidden layer behind the embedding.
    node_features : text
        ``"costs"``: compute time and output bytes (paper). ``"costs-and-times"``: also the longest
        paths before and behind a group. ``"costs-times-and-schedule"``: also its simulated start
        and end and the memory of its device, for a `SchedulingEvaluator`.
    device_features : text
        ``"none"`` (paper). ``"loads"``: sums over the groups of each device, of all and near the
        current group. ``"loads-and-lookahead"``: also the cost with the current group on each
        device.
    reward : text
        ``"intermediate"``: the improvement of each step (paper). ``"terminal"``: the negative
        memory-penalised runtime after the last step. ``"counterfactual"``: the gain of the last
        placement over that with the group of the step on another device.
    order : text
        Order in which an episode visits the groups: ``"topological"`` (code), or ``"random"``, a
        new one for each episode.
    start : text
        Placement before an episode: ``"single"``, all groups on the first device that can run them
        (code), or ``"random"``, a new placement for each episode.
    memory_penalty : float
        Penalty for memory that a device lacks, c = 2e-9 s per byte, 2 s/GB (paper).
    workers : int
        Number of episodes in an update, 8, each with a random stream of its own (paper).
    updates : int
        Number of updates, over which the learning rate and the entropy weight decay.
    learning_rate_start, learning_rate_end : float
        Learning rate of Adam, which decays linearly; from 1e-3 to 1e-4 (code).
    entropy_weight_start, entropy_weight_end : float
        Weight of the entropy bonus, which decays linearly (paper). It is in seconds if advantages
        are.
    entropy_control : text
        ``"weight"``: these weights. ``"target"``: no weights, but a target of the entropy that
        decays linearly from that of uniform choices to 0, for each graph. The paper tunes its
        weights for each model so that the entropy "starts off high and decays gradually". See
        `Trainer.entropy_weight_of`.
    baseline_window : int
        Number of rounds of episodes of a graph over which its baseline is averaged, k_b = 10
        (code).
    discount : float
        Discount of future intermediate rewards. The equation of the paper has none, which is 1. A
        discount of 0.9 keeps the noise of later choices out of a return. Other rewards do not use
        it; see `return_discount`.
    advantage_scale : text
        ``"none"``: advantages are in seconds (paper). ``"spread"``: they are divided by their mean
        absolute value on that graph, and clipped at 4.
    max_gradient_norm : float
        Norm to which a longer summed gradient is scaled down, 1.25 (code).
    minibatches : int
        Number of minibatches of an update, each a step of Adam; 1 (paper).
    epochs : int
        Number of times that an update learns from its episodes; 1 (paper).
    clip_ratio : float
        Largest change of the probability of an action for gain, 0.2 (Schulman et al. 2017, proximal
        policy optimization). It has an effect from the second step of Adam in an update on.
    selection : text
        Policy that the training leaves: ``"last"``, that of the last update (paper), or ``"best"``,
        the one with the best greedy placements of the graphs for validation (`Trainer`).

    Raises
    ------
    PolicyError
        When a value is not as described.

    Examples
    --------
    >>> Settings(updates=200).learning_rate_start
    0.002
    """

    embedding: EmbeddingName = "message-passing"
    message_rounds: int = 8
    messages: MessageName = "residual"
    hidden_units: int = 512
    node_features: NodeFeaturesName = "costs-times-and-schedule"
    device_features: DeviceFeaturesName = "loads-and-lookahead"
    reward: RewardName = "counterfactual"
    order: OrderName = "topological"
    start: StartName = "single"
    memory_penalty: float = SECONDS_PER_BYTE
    workers: int = 8
    updates: int = 200
    learning_rate_start: float = 2e-3
    learning_rate_end: float = 3e-4
    entropy_weight_start: float = 0.3
    entropy_weight_end: float = 1e-2
    entropy_control: EntropyControlName = "weight"
    baseline_window: int = 10
    discount: float = 0.9
    advantage_scale: AdvantageScaleName = "spread"
    max_gradient_norm: float = 1.25
    minibatches: int = 8
    epochs: int = 2
    clip_ratio: float = 0.2
    selection: SelectionName = "best"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, field.type, getattr(self, field.name))
        if self.discount > 1:
            raise PolicyError(f"discount: expected at most 1, got {self.discount}")

    def validates_after(self, update: int) -> bool:
        """Return True if a training validates its policy after an update.

        Examples
        --------
        >>> settings = Settings(updates=23)
        >>> [update for update in range(1, 24) if settings.validates_after(update)]
        [10, 20, 23]
        """
        is_due = update % UPDATES_BETWEEN_VALIDATIONS == 0 or update == self.updates
        return self.selection == "best" and is_due

    @property
    def sees_lookahead(self) -> bool:
        """True if the network reads the cost of each device; that of pairs does not."""
        return self.embedding != "pairs" and self.device_features == "loads-and-lookahead"

    @property
    def sees_schedule(self) -> bool:
        """True if the network reads simulated schedules; that of pairs does not."""
        return self.embedding != "pairs" and self.node_features == "costs-times-and-schedule"

    @property
    def starts_nowhere(self) -> bool:
        """True if groups are on no device before they are placed, for the network of pairs."""
        return self.embedding == "pairs"

    @property
    def return_discount(self) -> float:
        """Discount of the reward of the next step in the return of a step.

        Terminal rewards have none, or they would not reach the first steps. Counterfactual rewards
        are those of single steps.
        """
        if self.reward == "intermediate":
            return self.discount
        return 1.0 if self.reward == "terminal" else 0.0


def _check(name: str, kind: Any, value: Any) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = ", ".join(map(repr, get_args(kind)))
            raise PolicyError(f"{name}: expected one of {choices}, got {short_repr(value)}")
    elif kind is int:
        minimum = 0 if name in MAY_BE_ZERO else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise PolicyError(f"{name}: expected an integer >= {minimum}, got {short_repr(value)}")
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        sign = ">=" if name in MAY_BE_ZERO else ">"
        if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and sign == ">"):
            raise PolicyError(f"{name}: expected a finite number {sign} 0, got {short_repr(value)}")


GENERAL = Settings(
    embedding="pairs", hidden_units=96, node_features="costs-and-times", device_features="loads"
)
PRESETS: Mapping[str, Settings] = {
    "default": Settings(),
    "general": GENERAL,
    "fine-tuning": replace(
        GENERAL,
        learning_rate_start=3e-4,
        learning_rate_end=3e-5,
        entropy_weight_start=1e-2,
        entropy_weight_end=1e-3,
    ),
    "paper": Settings(
        node_features="costs",
        device_features="none",
        reward="intermediate",
        updates=1000,
        learning_rate_start=1e-3,
        learning_rate_end=1e-4,
        entropy_weight_start=1e-4,
        entropy_weight_end=1e-6,
        discount=1.0,
        advantage_scale="none",
        minibatches=1,
        epochs=1,
        selection="last",
    ),
}


def preset(name: str) -> Settings:
    """Return hyperparameters that belong together.

    ``"default"``: the best values on all graphs that were tried. ``"general"``: for policies of any
    number and kind of devices. ``"fine-tuning"``: to train such a policy further, with smaller
    steps and less exploration. ``"paper"``: the method of Addanki et al. 2019, with residual
    messages.

    Parameters
    ----------
    name
        Name of the preset.

    Raises
    ------
    PolicyError
        When there is no such preset.

    Examples
    --------
    >>> preset("paper").discount
    1.0
    """
    if name not in PRESETS:
        choices = ", ".join(map(repr, PRESETS))
        raise PolicyError(f"preset: expected one of {choices}, got {short_repr(name)}")
    return PRESETS[name]
