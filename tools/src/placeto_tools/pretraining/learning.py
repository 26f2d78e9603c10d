"""The training of the policy, which goes on from its last checkpoint, and what it validates by."""

import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save

from placeto_graphs import write_atomically
from placeto_policy import Imitation
from placeto_policy import PlacementPolicy
from placeto_policy import PlacetoPlacer
from placeto_policy import demonstrate
from placeto_policy import preset
from placeto_policy import save_policy
from placeto_policy.workers import Processes
from placeto_simulator import Simulator
from placeto_tools.errors import InputError
from placeto_tools.errors import reading
from placeto_tools.errors import writing
from placeto_tools.pretraining.costs import cost_of
from placeto_tools.pretraining.searched import Searched
from placeto_tools.stopping import StopRequest
from placeto_tools.training import agreed_to_stop

CHECKPOINT = "training.safetensors"
POLICY = "policy.safetensors"
STEPS_BETWEEN_CHECKPOINTS = 200
STEPS_BETWEEN_VALIDATIONS = 1000
SAMPLES = 15  # passes besides the greedy one


@dataclass(frozen=True)
class Validation:
    """How a policy places problems that it does not learn from, in parts of what search found.

    Attributes
    ----------
    greedy : float64[N]
        Of the most probable placement of each problem.
    best_of_some : float64[N]
        Of the best of it and of some drawn ones.
    """

    greedy: NDArray[np.float64]
    best_of_some: NDArray[np.float64]

    @property
    def score(self) -> float:
        """What policies are chosen by: the geometric mean of the best ones."""
        return float(np.exp(np.log(self.best_of_some).mean()))

    def __str__(self) -> str:
        parts = []
        for name, ratios in (("greedy", self.greedy), ("best of 16", self.best_of_some)):
            mean = np.exp(np.log(ratios).mean())
            parts.append(f"{name} {np.median(ratios):.3f} (geometric mean {mean:.3f})")
        near = float((self.best_of_some < 1.05).mean())
        return ", ".join(parts) + f", {near:.0%} within 5 %"


def validate(policy: PlacementPolicy, problems: Sequence[Searched]) -> Validation:
    """Return how a policy places problems, zero-shot.

    Parameters
    ----------
    policy
        The policy.
    problems
        What it did not learn from.
    """
    found = []
    for each in problems:
        simulator = Simulator(each.problem, num_threads=1)
        searched = cost_of(simulator, each.placement)
        one, some = PlacetoPlacer(policy=policy), PlacetoPlacer(policy=policy, samples=SAMPLES)
        found.append(
            [
                cost_of(simulator, placer.place(each.problem, simulator).placement) / searched
                for placer in (one, some)
            ]
        )
    greedy, best_of_some = np.array(found).T
    return Validation(greedy, best_of_some)


def weights_of(names: Sequence[str]) -> list[float]:
    """Return how often problems are drawn: those of each kind of graph as often as of another.

    There are a thousand random graphs in the corpus, and few of real models.

    Parameters
    ----------
    names
        Of problems, such as ``"fork-join-31.2"`` or ``"transformers-t5.0"``.

    Examples
    --------
    >>> weights_of(["grid-1.0", "grid-2.0", "nmt-03.0"])
    [0.5, 0.5, 1.0]
    """
    kinds = [name.rpartition("-")[0] for name in names]
    return [1 / kinds.count(kind) for kind in kinds]


def learn(
    folder: Path,
    training: Sequence[Searched],
    validation: Sequence[Searched],
    *,
    steps: int,
    seed: int,
    processes: Processes,
    report: Callable[[str], None] = print,
) -> None:
    """Make the steps that are left, and keep the policy that places the validation part best.

    Parameters
    ----------
    folder
        Where the checkpoint and the policy are kept. A training that is there goes on.
    training, validation
        Problems to learn from, and to choose by.
    steps
        How many steps there are in all.
    seed
        Of the first weights and of all random choices.
    processes
        Which processes train together.
    report
        Is called with lines that say how far it is.
    """
    policy = PlacementPolicy(settings=preset("general"), seed=seed)
    demonstrations = [
        demonstrate(Simulator(each.problem, num_threads=1), each.placement) for each in training
    ]
    weights = weights_of([each.name for each in training])
    run = Imitation(
        policy, demonstrations, steps=steps, weights=weights, seed=seed, processes=processes
    )
    best = _restore(folder / CHECKPOINT, run)
    report(f"{len(training)} problems to learn from, {len(validation)} to choose by")
    losses: list[float] = []
    began = time.monotonic()
    with StopRequest() as stop:
        stopping = False
        while run.steps_done < steps and not stopping:
            losses.append(run.step())
            stopping = agreed_to_stop(processes, stop)
            to_save = stopping or run.steps_done == steps
            if run.steps_done == steps or run.steps_done % STEPS_BETWEEN_VALIDATIONS == 0:
                validated = validate(run.policy, validation)
                report(f"step {run.steps_done:,}: {validated}")
                if validated.score < best and processes.rank == 0:
                    with writing(folder / POLICY):
                        save_policy(run.policy, folder / POLICY)
                best = min(best, validated.score)
            if to_save or run.steps_done % STEPS_BETWEEN_CHECKPOINTS == 0:
                each = (time.monotonic() - began) / len(losses)
                report(f"step {run.steps_done:,}: loss {np.mean(losses):.4f}, {each:.3f} s a step")
                losses, began = [], time.monotonic()
                if processes.rank == 0:
                    _save(folder / CHECKPOINT, run, best)


def _save(path: Path, run: Imitation, best: float) -> None:
    tensors = run.tensors() | {"best": torch.tensor(best, dtype=torch.float64)}
    with writing(path):
        write_atomically(path, save({name: each.contiguous() for name, each in tensors.items()}))


def _restore(path: Path, run: Imitation) -> float:
    """Let a run go on from a checkpoint, if there is one, and return its best score."""
    if not path.exists():
        return float("inf")
    with reading(path):
        content = path.read_bytes()
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise InputError(f"{path}: expected a checkpoint of this training: {error}") from None
    with reading(path):
        run.restore(tensors)
    return float(tensors.get("best", torch.tensor(float("inf"))))
