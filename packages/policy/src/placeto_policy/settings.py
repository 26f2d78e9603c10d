"""Every hyperparameter, with where its value comes from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin

from placeto_graphs import SECONDS_PER_BYTE
from placeto_policy.errors import PolicyError, shown

EmbeddingName = Literal["pairs", "message-passing", "simple-partitioner", "simple-aggregator"]
RewardName = Literal["counterfactual", "intermediate", "terminal"]
NodeFeaturesName = Literal["costs", "costs-and-times", "costs-times-and-schedule"]
DeviceFeaturesName = Literal["none", "loads", "loads-and-lookahead"]
AdvantageScaleName = Literal["none", "spread"]
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

    Values marked (paper) are those of Addanki et al. 2019 and of the list of hyperparameters in its
    published code; those marked (code) stand only in the code. docs/differences.md tells where the
    others come from, and `preset` gives those of the published method altogether.

    Attributes
    ----------
    embedding : text
        ``"message-passing"`` (paper), or one of its ablations ``"simple-partitioner"`` and
        ``"simple-aggregator"``, for a fixed number of devices; ``"pairs"``: a score for each pair
        of the current group and a device, for any number of devices of any kind, see `PairScores`.
        It has features and messages of its own, for which the settings below make no difference.
    message_rounds : int
        k = 8 rounds of message passing (paper).
    messages : text
        ``"plain"``: a round replaces a node by what it makes of its neighbours, whose sum is taken
        as it is (paper); ``"residual"``: it adds that to the node's own features (code), and
        divides sums by the number of edges per group.
    hidden_units : int
        Of the two-layer network behind the embedding.
    node_features : text
        ``"costs"``: compute time and output bytes (paper); ``"costs-and-times"``: also when a group
        could run at the earliest, and the longest paths before and behind it;
        ``"costs-times-and-schedule"``: and when the evaluator says that it is at work, with how
        full its device is, as the groups are placed now; for a `SchedulingEvaluator`.
    device_features : text
        ``"none"`` (paper); ``"loads"``: the network behind the embedding also sees what each device
        holds already, in all and near the current group; ``"loads-and-lookahead"``: and what the
        evaluator says that the placement would cost with the current group on each device.
    reward : text
        ``"intermediate"``: the improvement of each step (paper); ``"terminal"``: the negative
        memory-penalised runtime after the last step; ``"counterfactual"``: by how much the last
        placement is better than with the step's group on another device.
    order : text
        In which order an episode visits the groups: ``"topological"`` (code), or ``"random"``, a
        new one for each episode.
    start : text
        Where the groups are before an episode: ``"single"``, all on the first device that can run
        them (paper), or ``"random"``, a new placement for each episode.
    memory_penalty : float
        c = 2e-9 s per byte, 2 s/GB (paper), for what a device holds beyond its memory.
    workers : int
        8 episodes for each update, each by a worker with a random stream of its own (paper).
    updates : int
        Over how many updates the learning rate and the entropy weight decay.
    learning_rate_start, learning_rate_end : float
        Of Adam, decayed linearly; from 1e-3 to 1e-4 (paper).
    entropy_weight_start, entropy_weight_end : float
        Of the entropy bonus, decayed linearly (paper) from exploring to almost none; in seconds
        where advantages are in seconds.
    baseline_window : int
        k_b = 10 rounds of episodes of a graph over which its baseline is averaged (paper).
    discount : float
        Of future intermediate rewards. The equation of the paper has none, which is 1; 0.9 was
        measured to learn about three times as fast: the noise of later choices stays out of a
        return. Other rewards make no use of it, see `return_discount`.
    advantage_scale : text
        ``"none"``: advantages are in seconds (paper); ``"spread"``: in parts of their mean size on
        that graph, at most 4.
    max_gradient_norm : float
        The summed gradient is scaled down to this norm, 1.25 (code).
    minibatches : int
        In how many parts, each a step of Adam, the states of an update are learned from; 1 (paper).
    epochs : int
        How often they are learned from; 1 (paper).
    clip_ratio : float
        How far a step may change the probability of an action for gain: 0.2 (Schulman et al. 2017,
        proximal policy optimization). It matters from the second part of an update on.
    selection : text
        Which policy the training leaves: ``"last"``, that of the last update (paper), or
        ``"best"``, that whose greedy placements of the validation's graphs are best (`Trainer`).

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
        """Return whether a training validates its policy after an update, to choose the best.

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
        """Whether the network reads what each device would cost; that of pairs does not."""
        return self.embedding != "pairs" and self.device_features == "loads-and-lookahead"

    @property
    def sees_schedule(self) -> bool:
        """Whether the network reads when groups run; that of pairs does not."""
        return self.embedding != "pairs" and self.node_features == "costs-times-and-schedule"

    @property
    def starts_nowhere(self) -> bool:
        """Whether groups are nowhere to the network before they are placed: to that of pairs."""
        return self.embedding == "pairs"

    @property
    def return_discount(self) -> float:
        """How much the reward of the next step counts in the return of a step.

        Terminal rewards count in full, or the first steps would see nothing of them; counterfactual
        ones are of single steps.
        """
        if self.reward == "intermediate":
            return self.discount
        return 1.0 if self.reward == "terminal" else 0.0


def _check(name: str, kind: Any, value: Any) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = ", ".join(map(repr, get_args(kind)))
            raise PolicyError(f"{name}: expected one of {choices}, got {shown(value)}")
    elif kind is int:
        minimum = 0 if name in MAY_BE_ZERO else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise PolicyError(f"{name}: expected an integer >= {minimum}, got {shown(value)}")
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        sign = ">=" if name in MAY_BE_ZERO else ">"
        if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and sign == ">"):
            raise PolicyError(f"{name}: expected a finite number {sign} 0, got {shown(value)}")


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

    Parameters
    ----------
    name
        ``"default"``: what learned best on all graphs that were tried; ``"general"``: for policies
        that place problems of any number and kind of devices; ``"fine-tuning"``: for going on from
        such a policy, with smaller steps and less exploring; ``"paper"``: the method of
        Addanki et al. 2019 as it is written down, with messages as its published code has them.

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
        raise PolicyError(f"preset: expected one of {choices}, got {shown(name)}")
    return PRESETS[name]
