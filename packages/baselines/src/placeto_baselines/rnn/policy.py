"""A trained policy, and its files."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from placeto_baselines.errors import BaselineError
from placeto_baselines.rnn.embedding import GroupEmbedding
from placeto_baselines.rnn.graphs import batch_of, placements_of
from placeto_baselines.rnn.model import PlacementModel
from placeto_baselines.rnn.settings import RnnSettings
from placeto_baselines.rnn.trainer import Trainer
from placeto_baselines.trials import Trials
from placeto_graphs import Evaluator, PlacementProblem, write_atomically

FORMAT = "placeto-rnn-policy"
VERSION = 2


class StoredPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """What stands in the JSON file beside the weights."""

    format: str
    version: int
    num_devices: int
    op_types: list[str]
    settings: dict[str, int | float]


@dataclass(frozen=True, eq=False)
class RnnPolicy:
    """The weights of a policy, with all that is needed to apply it.

    Attributes
    ----------
    model : `PlacementModel`
        The weights.
    embedding : `GroupEmbedding`
        How graphs are read.
    settings : `RnnSettings`
        The hyperparameters.
    """

    model: PlacementModel
    embedding: GroupEmbedding
    settings: RnnSettings

    def placements(self, problem: PlacementProblem, count: int, seed: int) -> NDArray[np.int32]:
        """Return int32[count, G]: the likeliest placement, and then ones that are drawn.

        Raises
        ------
        BaselineError
            When the problem has another number of devices, or too many groups.
        """
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
        """Write the weights to ``path``, and the rest beside it, with the suffix ``.json``.

        Parameters
        ----------
        path
            The file of the weights, of the suffix ``.safetensors``.

        Raises
        ------
        BaselineError
            When the path has another suffix.
        """
        weights, rest = _paths(path)
        stored = StoredPolicy(
            format=FORMAT,
            version=VERSION,
            num_devices=self.model.num_devices,
            op_types=list(self.embedding.op_types),
            settings=self.settings.as_dict(),
        )
        write_atomically(weights, safetensors.torch.save(self.model.state_dict()))
        write_atomically(rest, msgspec.json.format(msgspec.json.encode(stored)) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RnnPolicy":
        """Read what `save` wrote; nothing of it is executed.

        Raises
        ------
        BaselineError
            When one of the files is not what it must be.
        OSError
            When one of them cannot be read.
        """
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
) -> tuple[RnnPolicy, list[Trials]]:
    """Train a policy on the problems of some evaluators, all on equally many devices.

    Returns
    -------
    RnnPolicy
        The policy as it is after the last update.
    list of Trials
        What was tried for each problem.

    Raises
    ------
    BaselineError
        When there is no problem, when they have different numbers of devices, or too many groups.
    """
    problems = [evaluator.problem for evaluator in evaluators]
    numbers = sorted({problem.num_devices for problem in problems})
    if len(numbers) != 1:
        raise BaselineError(
            f"evaluators: expected problems on one number of devices, got {numbers or 'none'}"
        )
    trials = [Trials(evaluator.problem, evaluator) for evaluator in evaluators]
    embedding = GroupEmbedding.of_problems(problems, settings.max_groups, settings.max_outputs)
    graphs = batch_of(problems, embedding)
    generator = torch.Generator().manual_seed(seed)
    model = PlacementModel(embedding.num_features, numbers[0], settings, generator)
    with one_thread():
        Trainer(model, graphs, trials, settings, generator).train()
    return RnnPolicy(model, embedding, settings), trials


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread.

    A step of an LSTM is a small product, between which torch's other threads spin: where something
    else has a core, a sampled placement was measured to take 14 times as long with two threads.
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
