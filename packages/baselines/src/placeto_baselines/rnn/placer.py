"""The recurrent policy as a placer: trained on the graph itself, or on others."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from placeto_baselines.errors import check_at_least, import_extra
from placeto_baselines.rnn.settings import RnnSettings
from placeto_baselines.trials import Trials, check_evaluator
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult

if TYPE_CHECKING:
    from placeto_baselines.rnn.policy import RnnPolicy


class RnnPlacer:
    """The sequence-to-sequence policy of Mirhoseini et al. (2017, 2018), trained on the graph.

    A bidirectional LSTM encodes the groups, and another with attention decodes their devices.
    REINFORCE on the square root of the memory-penalised runtime trains both from random weights,
    for each graph ("RNN-based approach" of Addanki et al. 2019). The order of groups matters: the
    same graph with other group numbers may get another placement.

    Parameters
    ----------
    settings
        The hyperparameters; by default the published ones, but those of learning.

    Examples
    --------
    >>> settings = RnnSettings(hidden_size=16, evaluations=200, learning_rate=0.01)
    >>> RnnPlacer(settings).place(problem, evaluator).evaluations
    200
    """

    name = "rnn"

    def __init__(self, settings: RnnSettings | None = None) -> None:
        self.settings = settings or RnnSettings()

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Train a policy on the problem, and return the best placement that it sampled.

        Raises
        ------
        BaselineError
            When torch is not installed, or the problem has more than ``settings.max_groups``
            groups.
        """
        check_evaluator(problem, evaluator)
        _, trials = _policy_module().train_policy([evaluator], self.settings, seed)
        result: PlacementResult = trials[0].result()
        return result

    def train(self, evaluators: Sequence[Evaluator], *, seed: int = 0) -> "TrainedRnnPlacer":
        """Train one policy on several problems, to be applied to others.

        Parameters
        ----------
        evaluators
            Evaluators of problems on equally many devices.
        seed
            Seed of all random choices.

        Raises
        ------
        BaselineError
            When torch is not installed, the problems have different numbers of devices, or one of
            them more than ``settings.max_groups`` groups.

        Examples
        --------
        >>> settings = RnnSettings(hidden_size=16, evaluations=50, max_groups=4)
        >>> trained = RnnPlacer(settings).train([evaluator, evaluator])
        >>> trained.place(problem, evaluator).evaluations
        1
        """
        policy, _ = _policy_module().train_policy(evaluators, self.settings, seed)
        return TrainedRnnPlacer(policy)


class TrainedRnnPlacer:
    """A recurrent policy that was trained on some graphs, and places others as it is (zero-shot).

    Parameters
    ----------
    policy
        The policy, as `RnnPlacer.train` and `load` make it.
    samples
        Number of its placements that are evaluated, of which the best is the result: the likeliest,
        and ones that are drawn.

    Raises
    ------
    BaselineError
        When the number of samples is not at least 1; by `place`, when the problem has another
        number of devices than those of training.

    Examples
    --------
    >>> settings = RnnSettings(hidden_size=16, evaluations=50, max_groups=4)
    >>> trained = RnnPlacer(settings).train([evaluator])
    >>> trained.save("policy.safetensors")
    >>> again = TrainedRnnPlacer.load("policy.safetensors")
    >>> again.place(problem, evaluator).placement == trained.place(problem, evaluator).placement
    array([ True,  True,  True,  True])
    """

    name = "rnn-zero-shot"

    def __init__(self, policy: "RnnPolicy", samples: int = 1) -> None:
        check_at_least("samples", samples, 1)
        self.policy = policy
        self.samples = samples

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the best of the policy's placements, without further training."""
        trials = Trials(problem, evaluator)
        trials.evaluate(self.policy.placements(problem, self.samples, seed))
        return trials.result()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy: weights to ``path`` (``.safetensors``), the rest to ``.json``."""
        self.policy.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], samples: int = 1) -> "TrainedRnnPlacer":
        """Return the placer of a policy that `save` wrote.

        Raises
        ------
        BaselineError
            When the files are not what they must be.
        OSError
            When they cannot be read.
        """
        return cls(_policy_module().RnnPolicy.load(path), samples)


def _policy_module() -> Any:
    libraries = ["torch", "safetensors", "msgspec"]  # they take seconds to import
    return import_extra("placeto_baselines.rnn.policy", "rnn", libraries)
