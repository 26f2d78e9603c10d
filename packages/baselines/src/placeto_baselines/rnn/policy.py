"""A policy that is trained by REINFORCE on the memory-penalised runtime, and its files."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from placeto_baselines.errors import BaselineError
from placeto_baselines.placement_trials import PlacementTrials
from placeto_baselines.rnn.model import (
    GraphBatch,
    GroupEmbedding,
    PlacementModel,
    batch_of,
    chosen,
    entropy,
    placements_of,
)
from placeto_baselines.rnn.settings import RnnSettings
from placeto_graphs import (
    Evaluator,
    PlacementProblem,
    memory_penalised_runtime,
    write_atomically,
)

FORMAT = "placeto-rnn-policy"
VERSION = 3


class StoredPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """Content of the JSON file beside the weights."""

    format: str
    version: int
    num_devices: int
    op_types: list[str]
    settings: dict[str, int | float]


@dataclass(frozen=True, eq=False)
class RnnPolicy:
    """The weights of a policy, with all that is needed to apply it."""

    model: PlacementModel
    embedding: GroupEmbedding
    settings: RnnSettings

    def placements(self, problem: PlacementProblem, count: int, seed: int) -> NDArray[np.int32]:
        """Return int32[count, G]: the likeliest placement, and then ones that are drawn."""
        if problem.num_devices != self.model.num_devices:
            raise BaselineError(
                f"problem: expected {self.model.num_devices} devices, as the policy was trained "
                f"for, got {problem.num_devices}"
            )
        with torch.no_grad(), one_thread():
            encoded = self.model.encode(batch_of([problem], self.embedding))
            rows = [placements_of(problem, self.model.most_likely(encoded))]
            if count > 1:
                generator = torch.Generator().manual_seed(seed)
                drawn = self.model.sample(encoded, count - 1, generator).devices
                rows.append(placements_of(problem, drawn[0]))
        return np.concatenate(rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights to ``path``, and the rest beside it, with the suffix ``.json``."""
        weights, rest = _paths(path)
        stored = StoredPolicy(
            format=FORMAT,
            version=VERSION,
            num_devices=self.model.num_devices,
            op_types=list(self.embedding.op_types),
            settings=asdict(self.settings),
        )
        write_atomically(weights, safetensors.torch.save(self.model.state_dict()))
        write_atomically(rest, msgspec.json.format(msgspec.json.encode(stored)) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RnnPolicy":
        """Read what `save` wrote; nothing of it is executed."""
        weights, rest = _paths(path)
        try:
            stored = msgspec.json.decode(rest.read_bytes(), type=StoredPolicy)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BaselineError(f"{rest}: {error}") from None
        if (stored.format, stored.version) != (FORMAT, VERSION):
            raise BaselineError(
                f"{rest}: expected format {FORMAT!r}, version {VERSION}, "
                f"got {stored.format!r}, version {stored.version}"
            )
        try:
            settings = RnnSettings(**stored.settings)  # type: ignore[arg-type]
        except (TypeError, BaselineError) as error:
            raise BaselineError(f"{rest}: {error}") from None
        embedding = GroupEmbedding(
            tuple(stored.op_types), settings.max_groups, settings.max_outputs
        )
        model = PlacementModel(
            embedding.num_features, stored.num_devices, settings, torch.Generator()
        )
        try:
            model.load_state_dict(safetensors.torch.load(weights.read_bytes()))
        except (SafetensorError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise BaselineError(f"{weights}: expected the weights of {rest}: {reason}") from None
        return cls(model, embedding, settings)


def train_policy(
    evaluators: Sequence[Evaluator], settings: RnnSettings, seed: int
) -> tuple[RnnPolicy, list[PlacementTrials]]:
    """Train a policy on the problems of some evaluators, all on equally many devices.

    Return the policy as it is after the last update, and what was tried for each problem.
    """
    problems = [evaluator.problem for evaluator in evaluators]
    device_counts = sorted({problem.num_devices for problem in problems})
    if len(device_counts) != 1:
        raise BaselineError(
            f"evaluators: expected problems on one number of devices, got {device_counts or 'none'}"
        )
    trials = [PlacementTrials(evaluator.problem, evaluator) for evaluator in evaluators]
    embedding = GroupEmbedding.of_problems(problems, settings.max_groups, settings.max_outputs)
    graphs = batch_of(problems, embedding)
    generator = torch.Generator().manual_seed(seed)
    model = PlacementModel(embedding.num_features, device_counts[0], settings, generator)
    with one_thread():
        Trainer(model, graphs, trials, settings, generator).train()
    return RnnPolicy(model, embedding, settings), trials


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread.

    A step of an LSTM is a small product, and torch's other threads spin between two of them. On a
    busy core, a sampled placement was measured to take 14 times as long with two threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _paths(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    weights = Path(path)
    if weights.suffix != ".safetensors":
        raise BaselineError(f"{weights}: expected a name that ends in .safetensors")
    return weights, weights.with_suffix(".json")


@dataclass(eq=False)
class Trainer:
    """Trains a policy on some graphs (Mirhoseini et al. 2017).

    Each update samples placements of some of the graphs, in turn. The reward of a placement is the
    square root of its memory-penalised runtime ``R(p)``, and is minimised. Addanki et al. (2019,
    appendix) use ``R(p)`` for both methods, instead of one constant for all placements that do not
    fit, which would not rank these. The advantage is the difference of the reward from the moving
    average of the rewards of its graph. The average starts from the first rewards. Placements that
    cannot run do not count.
    """

    model: PlacementModel
    graphs: GraphBatch
    trials: Sequence[PlacementTrials]
    settings: RnnSettings
    generator: torch.Generator

    def __post_init__(self) -> None:
        self.baseline = np.full(len(self.trials), np.nan)
        self.entropy_weight = self.settings.entropy_weight
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.settings.learning_rate)

    def train(self) -> None:
        """Update the policy until the evaluations are spent."""
        evaluations_left = total = self.settings.evaluations * len(self.trials)
        for rows in self._turns():
            samples = min(self.settings.samples_per_update, evaluations_left // len(rows))
            if not samples:
                return
            self.entropy_weight = self.settings.entropy_weight * evaluations_left / total
            self.update(rows, samples)
            evaluations_left -= samples * len(rows)

    def update(self, rows: Sequence[int], samples: int) -> None:
        """Update the policy once with so many placements of each of some graphs."""
        encoded = self.model.encode(self.graphs.rows(rows))
        written = self.model.sample(encoded, samples, self.generator)
        advantages = np.zeros((len(rows), samples))
        counts = np.zeros(advantages.shape, np.bool_)  # those that can run
        for position, row in enumerate(rows):
            problem = self.trials[row].problem
            batch = self.trials[row].evaluate(placements_of(problem, written.devices[position]))
            rewards = np.sqrt(memory_penalised_runtime(batch, problem.cluster.memory_bytes))
            counts[position] = np.isfinite(rewards)
            if counts[position].any():
                mean = rewards[counts[position]].mean()
                if np.isnan(self.baseline[row]):
                    self.baseline[row] = mean
                advantages[position] = rewards - self.baseline[row]
                decay = self.settings.baseline_decay
                self.baseline[row] = decay * self.baseline[row] + (1 - decay) * mean
        if not counts.any():
            return
        every = self.model.log_probabilities(encoded, written.devices, written)
        weight = torch.from_numpy(np.where(counts, advantages, 0.0) / counts.sum()).float()
        loss = (weight * chosen(every, written.devices, encoded)).sum()
        # 0 where nothing has counted yet
        entropy_weights = self.entropy_weight * np.nan_to_num(self.baseline[list(rows)])
        if entropy_weights.any():
            spread = entropy(every, encoded).mean(dim=1)
            loss = loss - (torch.from_numpy(entropy_weights).float() * spread).mean()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_norm)
        self.optimizer.step()

    def _turns(self) -> Iterator[list[int]]:
        turn_size = min(self.settings.graphs_per_update, len(self.trials))
        waiting: list[int] = []
        while True:
            while len(waiting) < turn_size:
                waiting += torch.randperm(len(self.trials), generator=self.generator).tolist()
            turn = sorted(set(waiting[:turn_size]))
            waiting = waiting[turn_size:]
            yield turn
