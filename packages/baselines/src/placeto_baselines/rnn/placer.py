"""The recurrent policy as a placer, trained on the graph itself or on others."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placeto_baselines.errors import check_at_least, import_extra
from placeto_baselines.placement_trials import PlacementTrials, check_evaluator
from placeto_baselines.rnn.settings import RnnSettings
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
    max_evaluations
        Number of placements that are sampled and evaluated, of each graph on average; by default
        ``settings.evaluations``.

    Raises
    ------
    BaselineError
        By `place` and `train`, when torch is not installed, or a problem has more than
        ``settings.max_groups`` groups.

    Examples
    --------
    >>> settings = RnnSettings(hidden_size=16, learning_rate=0.01)
    >>> RnnPlacer(settings, max_evaluations=200).place(problem, evaluator).evaluations
    200
    """

    name = "rnn"

    def __init__(
        self, settings: RnnSettings | None = None, max_evaluations: int | None = None
    ) -> None:
        self.settings = settings or RnnSettings()
        if max_evaluations is not None:
            check_at_least("max_evaluations", max_evaluations, 1)
            self.settings = replace(self.settings, evaluations=max_evaluations)

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Train a policy on the problem, and return the best placement that it sampled.

        Parameters
        ----------
        problem
            Problem to place.
        evaluator
            Evaluator of the problem.
        seed
            Seed of the weights and of all samples.

        Raises
        ------
        BaselineError
            If torch is not installed, the problem has too many groups, or the evaluator is that of
            another problem.
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
            Evaluators of the problems, which are on equally many devices and have at most
            ``settings.max_groups`` groups.
        seed
            Seed of the weights and of all samples.

        Raises
        ------
        BaselineError
            If torch is not installed, or a problem has too many groups or another number of
            devices.
        """
        policy, _ = _policy_module().train_policy(evaluators, self.settings, seed)
        return TrainedRnnPlacer(policy)


class TrainedRnnPlacer:
    """A recurrent policy that was trained on some graphs, and places others as it is (zero-shot).

    Parameters
    ----------
    policy
        The policy, as `RnnPlacer.train` and `load` make it.
    max_evaluations
        Number of its placements that are evaluated, of which the best is the result: the likeliest,
        and ones that are sampled.

    Raises
    ------
    BaselineError
        If ``max_evaluations`` is not at least 1; by `place`, when the problem has another
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

    def __init__(self, policy: "RnnPolicy", max_evaluations: int = 1) -> None:
        check_at_least("max_evaluations", max_evaluations, 1)
        self.policy = policy
        self.max_evaluations = max_evaluations

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the best of the policy's placements, without further training.

        Parameters
        ----------
        problem
            Problem to place.
        evaluator
            Evaluator of the problem.
        seed
            Seed of the samples.

        Raises
        ------
        BaselineError
            If the problem has another number of devices than those of training, or the evaluator
            is that of another problem.
        """
        trials = PlacementTrials(problem, evaluator)
        trials.costs(self.policy.placements(problem, self.max_evaluations, seed))
        return trials.result()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy: weights to ``path`` (``.safetensors``), the rest to ``.json``.

        Raises
        ------
        BaselineError
            If the name of the file does not end in ``.safetensors``.
        """
        self.policy.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], max_evaluations: int = 1) -> "TrainedRnnPlacer":
        """Return the placer of a policy that `save` wrote.

        Parameters
        ----------
        path
            File of the weights, whose name ends in ``.safetensors``; the rest is beside it.
        max_evaluations
            Number of placements of the policy that are evaluated.

        Raises
        ------
        BaselineError
            If torch is not installed, or the files are not those of a policy.
        """
        return cls(_policy_module().RnnPolicy.load(path), max_evaluations)


def _policy_module() -> Any:
    libraries = ["torch", "safetensors", "msgspec"]  # they take seconds to import
    return import_extra("placeto_baselines.rnn.policy", "rnn", libraries)
