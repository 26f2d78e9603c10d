"""The hyperparameters of the recurrent policy, with their sources."""

from dataclasses import dataclass

from placeto_baselines.errors import BaselineError, check_at_least


@dataclass(frozen=True)
class RnnSettings:
    """The hyperparameters of `RnnPlacer`; the defaults are the published ones but for learning.

    "2017" is Mirhoseini et al., *Device Placement Optimization with Reinforcement Learning* (ICML);
    "2018" is Mirhoseini et al., *A Hierarchical Model for Device Placement* (ICLR), with the
    defaults of the controller that its authors published in TensorFlow's Grappler.

    - ``hidden_size``: units of the encoder, half of them for each direction, of the decoder, of the
      attention, and of the embedding of a device: 512 (2018, Grappler).
    - ``forget_bias``: first bias of the forget gates: 1 (2018, Grappler).
    - ``tanh_constant``: ``C`` in ``C tanh(logits / T)``: 5 (2017).
    - ``temperature``: ``T`` in ``C tanh(logits / T)``: 10 (2017).
    - ``learning_rate``: constant learning rate of Adam: 0.001. Published is 0.1 (2017), with which
      the policy puts all groups on one device (lab/notes/recurrent-policy.md).
    - ``gradient_norm``: norm to which the gradient is clipped: 1 (2017).
    - ``baseline_decay``: fraction of the moving average of rewards that stays at each update: 0.9
      (2018, Grappler).
    - ``entropy_weight``: weight of a nat of entropy in the choice of a device at the start, as a
      fraction of the average reward: 0.004, chosen here; it decays linearly to 0 at the end of the
      training. None is published; without it the policy puts all groups of Inception-V3 on one
      device.
    - ``samples_per_update``: placements of a graph from which a gradient is estimated: 20, chosen
      here.
    - ``graphs_per_update``: graphs of a training set that an update sees; no published value, as
      there each policy is trained on one graph.
    - ``evaluations``: placements that are sampled of each graph, on average, while training.
      Published are hours of training instead.
    - ``max_groups``: the longest sequence of groups, to which adjacency is padded: 256 (2018,
      Grappler).
    - ``max_outputs``: number of output sizes of a group in its embedding: 5 (2018, Grappler).

    Raises
    ------
    BaselineError
        When a setting is out of its range.
    """

    hidden_size: int = 512
    forget_bias: float = 1.0
    tanh_constant: float = 5.0
    temperature: float = 10.0
    learning_rate: float = 0.001
    gradient_norm: float = 1.0
    baseline_decay: float = 0.9
    entropy_weight: float = 0.004
    samples_per_update: int = 20
    graphs_per_update: int = 4
    evaluations: int = 10_000
    max_groups: int = 256
    max_outputs: int = 5

    def __post_init__(self) -> None:
        for name in ("graphs_per_update", "max_groups", "max_outputs", "samples_per_update"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("evaluations", self.evaluations, 1, " evaluation")
        infinity = float("inf")
        positive = ("gradient_norm", "learning_rate", "tanh_constant", "temperature")
        expected = {
            name: ("a number above 0", 0 < getattr(self, name) < infinity) for name in positive
        }
        is_even = self.hidden_size >= 2 and self.hidden_size % 2 == 0
        expected["hidden_size"] = "an even number of units", is_even
        expected["entropy_weight"] = "a number of at least 0", 0 <= self.entropy_weight < infinity
        expected["baseline_decay"] = "a part from 0 to below 1", 0 <= self.baseline_decay < 1
        for name, (requirement, is_right) in expected.items():
            if not is_right:
                raise BaselineError(f"{name}: expected {requirement}, got {getattr(self, name)}")
