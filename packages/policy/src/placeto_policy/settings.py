"""Every hyperparameter, with where its value comes from."""

import math
from dataclasses import dataclass
from dataclasses import fields
from typing import Any
from typing import Literal
from typing import get_args
from typing import get_origin

from placeto_policy.errors import PolicyError
from placeto_policy.errors import shown

EmbeddingName = Literal["message-passing", "simple-partitioner", "simple-aggregator"]
RewardName = Literal["intermediate", "terminal"]
OrderName = Literal["topological", "random"]
StartName = Literal["single", "random"]

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

    Defaults marked (paper) are those of Addanki et al. 2019 and of the list of hyperparameters in
    its published code; those marked (code) stand only in the code; for the others neither gives a
    value, and docs/policy.md tells how they were chosen.

    Attributes
    ----------
    embedding : text
        ``"message-passing"`` (paper), or one of its ablations ``"simple-partitioner"`` and
        ``"simple-aggregator"``.
    message_rounds : int
        k = 8 rounds of message passing (paper).
    hidden_units : int
        Of the two-layer network behind the embedding.
    reward : text
        ``"intermediate"``: the improvement of each step (paper); ``"terminal"``: the negative
        memory-penalised runtime after the last step.
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
        Of Adam, decayed linearly from 1e-3 to 1e-4 (paper).
    entropy_weight_start, entropy_weight_end : float
        Of the entropy bonus, decayed linearly (paper) from exploring to almost none.
    baseline_window : int
        k_b = 10 rounds of episodes of a graph over which its baseline is averaged (paper).
    discount : float
        Of future rewards. The equation of the paper has none, which is 1; 0.9 was measured to
        learn about three times as fast: the noise of later choices stays out of a return.
    max_gradient_norm : float
        The summed gradient is scaled down to this norm, 1.25 (code).

    Raises
    ------
    PolicyError
        When a value is not as described.

    Examples
    --------
    >>> Settings(updates=200).learning_rate_start
    0.001
    """

    embedding: EmbeddingName = "message-passing"
    message_rounds: int = 8
    hidden_units: int = 512
    reward: RewardName = "intermediate"
    order: OrderName = "topological"
    start: StartName = "single"
    memory_penalty: float = 2e-9
    workers: int = 8
    updates: int = 1000
    learning_rate_start: float = 1e-3
    learning_rate_end: float = 1e-4
    entropy_weight_start: float = 0.03
    entropy_weight_end: float = 1e-3
    baseline_window: int = 10
    discount: float = 0.9
    max_gradient_norm: float = 1.25

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, field.type, getattr(self, field.name))
        if self.discount > 1:
            raise PolicyError(f"discount: expected at most 1, got {self.discount}")


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
