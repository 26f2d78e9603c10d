"""Training runs, which resume from their last checkpoint, and the score that chooses policies."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from placeto.errors import InputError, reading, writing
from placeto.placing.costs import cost_of
from placeto.placing.placers import start_of_search
from placeto.stopping import StopRequest
from placeto.training.training_run import agreed_to_stop
from placeto_experiments.pretraining.searched import Searched
from placeto_graphs import write_atomically
from placeto_policy import PlacementPolicy, save_policy
from placeto_policy.learning_run import LearningRun
from placeto_simulator import Simulator

STEPS_BETWEEN_CHECKPOINTS = 200
STEPS_BETWEEN_VALIDATIONS = 250
DESCRIBED = "described"


@dataclass(frozen=True)
class Validation:
    """Costs of a policy on N problems that it does not learn from, as ratios to those of search."""

    greedy: NDArray[np.float64]  # [N], of the most probable placement
    best_of_some: NDArray[np.float64]  # [N], of the best of it and of some sampled ones

    @property
    def score(self) -> float:
        """The score by which policies are chosen: the geometric mean of the best ones."""
        return float(np.exp(np.log(self.best_of_some).mean()))

    def __str__(self) -> str:
        parts = []
        for name, ratios in (("greedy", self.greedy), ("best of 16", self.best_of_some)):
            mean = np.exp(np.log(ratios).mean())
            parts.append(f"{name} {np.median(ratios):.3f} (geometric mean {mean:.3f})")
        near = float((self.best_of_some < 1.05).mean())
        return ", ".join(parts) + f", {near:.0%} within 5 %"


def validate(policy: PlacementPolicy, problems: Sequence[Searched]) -> Validation:
    """Return the zero-shot costs of a policy on unseen problems."""
    placer = start_of_search(policy)
    found = []
    for each in problems:
        simulator = Simulator(each.problem, num_threads=1)
        costs = placer.place(each.problem, simulator).curve[:, 1]  # the greedy rollout is the first
        found.append(costs[[0, -1]] / cost_of(simulator, each.placement))
    greedy, best_of_some = np.array(found).T
    return Validation(greedy, best_of_some)


def weights_of(names: Sequence[str]) -> list[float]:
    """Return the sampling weights of problems by name: equal for each kind of graph.

    The problem set has a thousand random graphs, and few of real models.

    Examples
    --------
    >>> weights_of(["grid-1.0", "grid-2.0", "nmt-03.0"])
    [0.5, 0.5, 1.0]
    """
    kinds = [name.rpartition("-")[0] for name in names]
    return [1 / kinds.count(kind) for kind in kinds]


def learn(
    run: LearningRun,
    checkpoint: Path,
    policy: Path,
    validation: Sequence[Searched],
    described: str = "",
    *,
    report: Callable[[str], None] = print,
) -> None:
    """Make the steps that are left of a run, and keep the policy that places problems best.

    Parameters
    ----------
    checkpoint
        File from which the run resumes, if it exists.
    policy
        File of the best policy.
    validation
        Problems to choose by.
    described
        Options of the run as a text; a run that was begun with others is refused.
    report
        Function that is called with lines of progress.
    """
    best = _restore(checkpoint, run, described)
    stopping = False
    with StopRequest() as stop:
        if not run.steps_done:
            best = _choose(run, policy, validation, best, report)
        values: list[float] = []
        began = time.monotonic()
        while run.steps_done < run.steps and not stopping:
            values.append(run.step())
            stopping = agreed_to_stop(run.processes, stop)
            is_last = run.steps_done == run.steps
            if is_last or run.steps_done % STEPS_BETWEEN_VALIDATIONS == 0:
                best = _choose(run, policy, validation, best, report)
            if is_last or stopping or run.steps_done % STEPS_BETWEEN_CHECKPOINTS == 0:
                each = (time.monotonic() - began) / len(values)
                mean = float(np.mean(values))
                report(f"step {run.steps_done:,}: {mean:.4f} on average, {each:.3f} s a step")
                values, began = [], time.monotonic()
                if run.processes.rank == 0:
                    _save(checkpoint, run, best, described)


def _choose(
    run: LearningRun,
    policy: Path,
    validation: Sequence[Searched],
    best: float,
    report: Callable[[str], None],
) -> float:
    """Keep the policy if it is better than all before, and return the best score."""
    validated = validate(run.policy, validation)
    report(f"step {run.steps_done:,}: {validated}")
    if validated.score < best and run.processes.rank == 0:
        with writing(policy):
            save_policy(run.policy, policy)
    return min(best, validated.score)


def _save(path: Path, run: LearningRun, best: float, described: str) -> None:
    tensors = run.tensors() | {
        "best": torch.tensor(best, dtype=torch.float64),
        DESCRIBED: torch.tensor(list(described.encode()), dtype=torch.uint8),
    }
    with writing(path):
        write_atomically(path, save({name: each.contiguous() for name, each in tensors.items()}))


def _restore(path: Path, run: LearningRun, described: str) -> float:
    """Resume a run from a checkpoint, if there is one, and return its best score."""
    if not path.exists():
        return float("inf")
    with reading(path):
        content = path.read_bytes()
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise InputError(f"{path}: expected a checkpoint of this training: {error}") from None
    begun = bytes(tensors.get(DESCRIBED, torch.empty(0, dtype=torch.uint8)).tolist()).decode()
    if begun != described:
        raise InputError(f"{path}: begun with other options: {begun or 'none'}, not {described}")
    with reading(path):
        run.restore(tensors)
    return float(tensors.get("best", torch.tensor(float("inf"))))
