"""Folder of a training: its problems, hyperparameters, checkpoint, logs and placements."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from placeto.errors import InputError, writing
from placeto.outputs import check_folder, read_json, write_json
from placeto_graphs import PlacementProblem, load_problem, save_placement, save_problem

if TYPE_CHECKING:
    from placeto_policy import PlacementPolicy

DESCRIPTION = "run.json"
CHECKPOINT = "training.safetensors"
LOG = "log.jsonl"
TENSORBOARD = "tensorboard"
FIRST_POLICY = "first-policy.safetensors"
PROBLEM, VALIDATION = "problem-{}.json.gz", "validation-{}.json.gz"
OF_PROBLEMS = (PROBLEM.format("*"), VALIDATION.format("*"))
OF_A_RUN = (CHECKPOINT, FIRST_POLICY, LOG, DESCRIPTION, *OF_PROBLEMS, "placement-*.json")


class StoredTraining(NamedTuple):
    """What a folder describes of its training."""

    problems: dict[str, PlacementProblem]  # by name
    settings: Mapping[str, Any]  # hyperparameters by name
    seed: int
    validation: dict[str, PlacementProblem]  # by name; none if the training has no others


class _Description(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["placeto-run"] = "placeto-run"
    version: Literal[1] = 1
    problems: Annotated[list[str], msgspec.Meta(min_length=1)]
    settings: Mapping[str, Any]
    seed: int
    validation: list[str] = []


def policy_file(path: Path) -> Path:
    """Return the policy file of a folder of `placeto train`, or the file itself."""
    return path / CHECKPOINT if path.is_dir() else path


def read_policy(path: Path, *problems: PlacementProblem) -> "PlacementPolicy":
    """Return the policy of a folder of `placeto train`, or of a policy file, for these problems."""
    from placeto_policy import load_policy  # noqa: PLC0415 (torch takes seconds)
    from placeto_policy.checkpoint import named  # noqa: PLC0415

    policy = load_policy(policy_file(path))
    with named(path):
        for problem in problems:
            policy.check_devices(problem.num_devices)
    return policy


class TrainingFolder:
    """A folder with all that a training needs to resume; its checkpoint is also a policy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = path / DESCRIPTION
        self.checkpoint = path / CHECKPOINT
        self.first_policy = path / FIRST_POLICY
        self.log = path / LOG
        self.tensorboard = path / TENSORBOARD
        self._stored: StoredTraining | None = None  # as it was written or read

    def check(self, *, force: bool) -> None:
        """Refuse a folder that cannot be used, before problems are read."""
        check_folder(self.path, DESCRIPTION, FIRST_POLICY, *OF_PROBLEMS, force=force)

    def create(self, training: StoredTraining, first_policy: "PlacementPolicy | None") -> None:
        """Write what a new training needs, over an older one."""
        with writing(self.path):
            for pattern in OF_A_RUN:
                for old in self.path.glob(pattern):
                    old.unlink()
            if first_policy is not None:
                from placeto_policy import save_policy  # noqa: PLC0415 (torch takes seconds)

                save_policy(first_policy, self.first_policy)
            if self.tensorboard.is_dir():
                shutil.rmtree(self.tensorboard)
            for name, to_save in ((PROBLEM, training.problems), (VALIDATION, training.validation)):
                for index, problem in enumerate(to_save.values()):
                    save_problem(problem, self.path / name.format(index))
        description = _Description(
            problems=list(training.problems),
            settings=training.settings,
            seed=training.seed,
            validation=list(training.validation),
        )
        write_json(self.description, description)
        self._stored = training

    def read(self) -> StoredTraining:
        """Return the problems, the hyperparameters and the seed; files are read once."""
        if self._stored is None:
            description = read_json(self.description, _Description, "`placeto train`")
            self._stored = StoredTraining(
                self._load(PROBLEM, description.problems),
                description.settings,
                description.seed,
                self._load(VALIDATION, description.validation),
            )
        return self._stored

    def has(self, training: StoredTraining, first_policy: "PlacementPolicy | None") -> bool:
        """Return True if the folder has this training; another one is an `InputError`."""
        if not self.description.exists():
            return False
        stored = self.read()
        is_equal = (
            stored == training
            and [*stored.problems] == [*training.problems]  # also in their order
            and [*stored.validation] == [*training.validation]
            and self._begins_with(first_policy)
        )
        if not is_equal:
            raise InputError(
                f"{self.description}: expected the training that the command describes, got "
                "one of other PROBLEMS, validation, hyperparameters, seed or first policy; --force "
                "replaces it"
            )
        return True

    def _begins_with(self, policy: "PlacementPolicy | None") -> bool:
        if policy is None or not self.first_policy.exists():
            return policy is None and not self.first_policy.exists()
        stored, weights = read_policy(self.first_policy).state_dict(), policy.state_dict()
        return stored.keys() == weights.keys() and all(
            stored[name].equal(weight) for name, weight in weights.items()
        )

    def save_placements(
        self, problems: Sequence[PlacementProblem], placements: Sequence[Any]
    ) -> list[Path]:
        """Write the best placements, of which some may be None, and return their files."""
        paths = []
        for index, (problem, placement) in enumerate(zip(problems, placements, strict=True)):
            if placement is not None:
                path = self.path / f"placement-{index}.json"
                with writing(path):
                    save_placement(placement, problem, path)
                paths.append(path)
        return paths

    def _load(self, file_name: str, names: Sequence[str]) -> dict[str, PlacementProblem]:
        files = [self.path / file_name.format(index) for index in range(len(names))]
        return dict(zip(names, map(load_problem, files), strict=True))
