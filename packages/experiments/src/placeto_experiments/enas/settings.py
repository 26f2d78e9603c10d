"""Every hyperparameter of a training."""

import math
from dataclasses import asdict, dataclass

from placeto_workloads.errors import WorkloadError
from placeto_workloads.models.sizes import whole_number

_WHOLE = ("rounds", "shared_steps", "controller_steps", "samples", "controller_units")
_POSITIVE = (
    "shared_rate",
    "least_shared_rate",
    "gradient_limit",
    "controller_rate",
    "temperature",
    "tanh_constant",
)


@dataclass(frozen=True)
class Settings:
    """How shared weights and controller are trained in turn.

    The defaults are for the small data sets, and take minutes; `PUBLISHED` are those of Pham et
    al. (2018).

    Attributes
    ----------
    rounds
        How often the two are trained in turn.
    shared_steps
        Batches of training data in a round, each for one sampled architecture.
    controller_steps
        Updates of the controller in a round.
    samples
        Architectures in such an update, all judged by one batch of validation data.
    shared_rate, least_shared_rate
        The learning rate of the shared weights in the first and, along a cosine, the last round.
    momentum
        Of Nesterov, for the shared weights.
    weight_decay
        Of the shared weights.
    gradient_limit
        The largest norm of a gradient of the shared weights; longer ones are scaled to it.
    controller_units
        Of its LSTM.
    controller_rate
        The learning rate of Adam for the controller.
    entropy_weight
        What a nat of a sample's entropy adds to its reward.
    temperature, tanh_constant
        Of the controller's logits.
    baseline_decay
        How much of the moving average of rewards is kept from one update to the next.
    uniform
        Whether architectures are drawn evenly instead, and the controller is left as it is: what
        a training is to be compared with.

    Raises
    ------
    WorkloadError
        When a number is not in its range.

    Examples
    --------
    >>> Settings(rounds=5).samples
    8
    """

    rounds: int = 30
    shared_steps: int = 40
    controller_steps: int = 10
    samples: int = 8
    shared_rate: float = 0.05
    least_shared_rate: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 1e-4
    gradient_limit: float = 5.0
    controller_units: int = 64
    controller_rate: float = 0.0035
    entropy_weight: float = 1e-4
    temperature: float = 5.0
    tanh_constant: float = 2.5
    baseline_decay: float = 0.95
    uniform: bool = False

    def __post_init__(self) -> None:
        for name in _WHOLE:
            whole_number(name, getattr(self, name))
        for name, value in asdict(self).items():
            if not math.isfinite(value) or value < 0:
                raise WorkloadError(f"{name}: expected a number of at least 0, got {value!r}")
        for name in _POSITIVE:
            if getattr(self, name) == 0:
                raise WorkloadError(f"{name}: expected a number above 0, got 0")
        for name in ("momentum", "baseline_decay"):
            if getattr(self, name) >= 1:
                raise WorkloadError(f"{name}: expected less than 1, got {getattr(self, name)!r}")

    def rate(self, round_index: int) -> float:
        """Return the learning rate of the shared weights in a round.

        Examples
        --------
        >>> Settings(rounds=3, shared_rate=0.5, least_shared_rate=0.25).rate(1)
        0.375
        """
        if self.rounds == 1:
            return self.shared_rate
        along = (1 + math.cos(math.pi * round_index / (self.rounds - 1))) / 2
        return self.least_shared_rate + (self.shared_rate - self.least_shared_rate) * along


PUBLISHED = {
    "convolutional": Settings(
        rounds=310,
        shared_steps=312,
        controller_steps=30,
        samples=10,
        controller_units=100,
        controller_rate=0.00035,
        entropy_weight=0.1,
    ),
    "recurrent": Settings(
        rounds=150,
        shared_steps=415,
        controller_steps=2000,
        samples=1,
        shared_rate=20.0,
        least_shared_rate=0.1,
        momentum=0.0,
        weight_decay=1e-7,
        gradient_limit=0.25,
        controller_units=100,
        controller_rate=0.00035,
    ),
}
"""The settings of Pham et al. (2018), by search space, as near as they can be told here.

What the publication leaves open is near to the authors' own program, whose moving baseline is
slower (0.99 and 0.999), and the learning rate of the shared weights falls along one cosine.
"""
