"""How a network learns what moves are worth: from exact changes of moves that the placer meets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from move_values.features import Simulated
from move_values.network import MoveValues, logarithm_of_gain
from move_values.placer import Costs, Level, MoveValuePlacer, improve, levels_of
from placeto_graphs import Evaluator, PlacementProblem
from placeto_policy.errors import PolicyError
from placeto_policy.workers import one_thread_of_torch

GAINS = 1e-6  # parts of the cost: what lowers it by less does not count as a gain
CLIPPED = 1.0  # the norm of gradients
LEAST, MOST = -3.0, 4.0  # logarithms of gains that matter


@dataclass(frozen=True, eq=False)
class LabelledMoves:
    """N moves from one placement, and what each changes.

    Attributes
    ----------
    features : float32[U, D, F]
        Of the U groups that some of the moves take.
    group : int64[N]
        Which of the U groups each move takes.
    device : int64[N]
        Where it takes it.
    change : float64[N]
        By what part of the cost it changes the cost; negative is better.
    """

    features: NDArray[np.float32]
    group: NDArray[np.int64]
    device: NDArray[np.int64]
    change: NDArray[np.float64]


def labelled_moves(
    problem: PlacementProblem,
    evaluator: Evaluator,
    values: MoveValues,
    generator: np.random.Generator,
    *,
    share: float = 0.4,
    moves: int = 160,
) -> list[LabelledMoves]:
    """Label moves of placements that the placer comes to, with a network as it is.

    It goes twice: once from where it starts, through all levels, once from a random placement of
    one level. Learning from where the learner itself goes is DAgger (Ross, Gordon, Bagnell 2011).

    Parameters
    ----------
    problem
        The problem.
    evaluator
        An evaluator of it.
    values
        The network.
    generator
        Of all random choices.
    share
        Of the placements, which are looked at.
    moves
        How many moves of each, half of them the most promising ones, the others random.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> problem = two_chains()
    >>> generator = np.random.default_rng(0)
    >>> some = labelled_moves(problem, BusiestDevice(problem), MoveValues(), generator, share=1.0)
    >>> some[0].features.shape[1:]
    (2, 32)
    """
    found: list[LabelledMoves] = []
    costs = Costs(problem, evaluator)
    levels = list(levels_of(problem))

    def visit(
        level: Level, simulated: Simulated, features: NDArray[np.float32], cost: float
    ) -> None:
        if generator.random() < share:
            group, device = _chosen(level, simulated, values.worth(features), moves, generator)
            if len(group):
                change = (
                    costs.of(evaluator.evaluate(_moved(level, costs, group, device))) / cost - 1
                )
                used, row = np.unique(group, return_inverse=True)
                found.append(LabelledMoves(features[used], row, device, change))

    placer = MoveValuePlacer(values=values, noise=0.5, moves=64)
    with one_thread_of_torch():
        costs.offer(placer.first(levels[0], costs, generator))
        for level in levels:
            improve(level, costs, placer, generator, visit)
        level = levels[generator.integers(len(levels))]
        costs.cost = np.inf
        costs.offer(level.random_placement(generator)[level.group_of][None])
        improve(level, costs, placer, generator, visit)
    return found


def _chosen(
    level: Level,
    simulated: Simulated,
    worth: NDArray[np.float64],
    count: int,
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return groups and devices of moves, half of them by what they promise."""
    keys = generator.gumbel(size=worth.shape)
    promising = worth + 0.5 * keys
    may = ~level.cannot_run
    may[np.arange(level.num_groups), simulated.placement] = False
    possible = np.flatnonzero(may)
    best = possible[np.argsort(-promising.ravel()[possible])][: count // 2]
    others = generator.permutation(np.setdiff1d(possible, best))[: count - len(best)]
    return np.divmod(np.concatenate([best, others]), worth.shape[1])


def _moved(
    level: Level, costs: Costs, group: NDArray[np.int64], device: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return int32[N, G], where the placer is, each time with one move made."""
    rows = np.repeat(costs.placement[None], len(group), axis=0)
    moves = level.group_of == group[:, None]
    return np.where(moves, device[:, None], rows).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """How a network learns from labelled moves.

    Attributes
    ----------
    steps
        Of the optimizer.
    learning_rate
        The highest; it rises to it and falls to nothing.
    weight_decay
        Of AdamW.
    placements
        Whose moves make a step.
    """

    steps: int = 3000
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    placements: int = 24


def learn(
    moves: Sequence[LabelledMoves], settings: LearningSettings | None = None, *, seed: int = 0
) -> MoveValues:
    """Return a network that has learned from labelled moves.

    Parameters
    ----------
    moves
        Of some placements, of any problems.
    settings
        How.
    seed
        Of the first weights and of the order.

    Raises
    ------
    PolicyError
        When there are no moves.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> problem = two_chains()
    >>> generator = np.random.default_rng(0)
    >>> some = labelled_moves(problem, BusiestDevice(problem), MoveValues(), generator, share=1.0)
    >>> learned = learn(some, LearningSettings(steps=10))
    """
    if not moves:
        raise PolicyError("moves: expected those of at least one placement, got none")
    settings = settings or LearningSettings()
    generator = np.random.default_rng(seed)
    values = MoveValues(seed=seed)
    rows = np.concatenate([each.features.reshape(-1, each.features.shape[2]) for each in moves])
    values.mean.copy_(torch.from_numpy(rows.mean(axis=0)))
    values.scale.copy_(torch.from_numpy(1 / (rows.std(axis=0) + 0.05)))
    by_devices: dict[int, list[LabelledMoves]] = {}
    for each in moves:
        by_devices.setdefault(each.features.shape[1], []).append(each)
    optimizer = torch.optim.AdamW(
        values.parameters(), settings.learning_rate / 2, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=settings.steps
    )
    with one_thread_of_torch():
        for _ in range(settings.steps):
            # Those of as many devices as one of them go through the network together.
            alike = by_devices[moves[int(generator.integers(len(moves)))].features.shape[1]]
            some = generator.integers(len(alike), size=settings.placements).tolist()
            loss = _loss(values, _joined([alike[each] for each in some]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(values.parameters(), CLIPPED)
            optimizer.step()
            schedule.step()
    return values


def _joined(moves: Sequence[LabelledMoves]) -> LabelledMoves:
    """Return moves of several placements, on as many devices each, as if of one."""
    first = np.cumsum([0, *(len(each.features) for each in moves[:-1])])
    return LabelledMoves(
        features=np.concatenate([each.features for each in moves]),
        group=np.concatenate([each.group + at for each, at in zip(moves, first, strict=True)]),
        device=np.concatenate([each.device for each in moves]),
        change=np.concatenate([each.change for each in moves]),
    )


def _loss(values: MoveValues, moves: LabelledMoves) -> torch.Tensor:
    """Return how wrong a network is about moves: about how much they gain, and about whether."""
    output = values(torch.from_numpy(moves.features))[moves.group, moves.device]
    gain = torch.from_numpy(logarithm_of_gain(moves.change)).float().clamp(LEAST, MOST)
    gains = torch.from_numpy(moves.change < -GAINS).float()
    wrong_gain = nn.functional.huber_loss(output[:, 0], gain)
    return wrong_gain + nn.functional.binary_cross_entropy_with_logits(output[:, 1], gains)
