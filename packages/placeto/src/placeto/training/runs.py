"""Trainings: their hyperparameters, and the folder of their problems, checkpoint and logs."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import msgspec

from placeto.errors import InputError, check_once, writing
from placeto.outputs import check_folder, read_json, write_json
from placeto_graphs import PlacementProblem, load_problem, save_placement, save_problem
from placeto_graphs.errors import not_among

if TYPE_CHECKING:
    from _typeshed import DataclassInstance  # pants: no-infer-dep

    from placeto_policy import PlacementPolicy, Settings

DESCRIPTION = "run.json"
CHECKPOINT = "training.safetensors"
LOG = "log.jsonl"
TENSORBOARD = "tensorboard"
FIRST_POLICY = "first-policy.safetensors"
PROBLEM = "problem-{}.json.gz"
OF_A_RUN = (CHECKPOINT, FIRST_POLICY, LOG, DESCRIPTION, PROBLEM.format("*"), "placement-*.json")
# What the network is made of, and what it sees.
NETWORK = (
    "embedding",
    "message_rounds",
    "messages",
    "hidden_units",
    "node_features",
    "device_features",
)


Run = tuple[dict[str, PlacementProblem], Mapping[str, Any], int]  # problems, settings, seed


class _Description(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["placeto-run"] = "placeto-run"
    version: Literal[1] = 1
    problems: Annotated[list[str], msgspec.Meta(min_length=1)]
    settings: Mapping[str, Any]
    seed: int


def read_policy(path: Path) -> "PlacementPolicy":
    """Return the policy of a folder of `placeto train`, or of a policy file."""
    from placeto_policy import load_policy  # noqa: PLC0415 (torch takes seconds)

    file = path / CHECKPOINT if path.is_dir() else path
    return load_policy(file)


class RunFolder:
    """A folder with all that a training needs to resume; its checkpoint is also a policy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = path / DESCRIPTION
        self.checkpoint = path / CHECKPOINT
        self.first_policy = path / FIRST_POLICY
        self.log = path / LOG
        self.tensorboard = path / TENSORBOARD
        self._known: Run | None = None  # what was written or read

    def check(self, *, force: bool) -> None:
        """Refuse a folder that cannot be used, before problems are read."""
        check_folder(self.path, DESCRIPTION, FIRST_POLICY, PROBLEM.format("*"), force=force)

    def create(
        self,
        problems: Mapping[str, PlacementProblem],
        settings: Mapping[str, Any],
        seed: int,
        first_policy: "PlacementPolicy | None" = None,
    ) -> None:
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
            for number, problem in enumerate(problems.values()):
                save_problem(problem, self._problem(number))
        described = _Description(problems=list(problems), settings=settings, seed=seed)
        write_json(self.description, described)
        self._known = dict(problems), settings, seed

    def read(self) -> Run:
        """Return the problems by name, the hyperparameters and the seed."""
        if self._known is None:
            found = read_json(self.description, _Description, "`placeto train`")
            problems = {
                name: load_problem(self._problem(number))
                for number, name in enumerate(found.problems)
            }
            self._known = problems, found.settings, found.seed
        return self._known

    def has(
        self,
        problems: Mapping[str, PlacementProblem],
        settings: Mapping[str, Any],
        seed: int,
        first_policy: "PlacementPolicy | None",
    ) -> bool:
        """Return True if the folder has this training; another one is an `InputError`."""
        if not self.description.exists():
            return False
        found, *others = self.read()
        is_that = list(found) == list(problems) and found == problems
        if not is_that or others != [dict(settings), seed] or not self._begins_with(first_policy):
            raise InputError(
                f"{self.description}: expected the training that the command describes, got "
                "one of other PROBLEMS, hyperparameters, seed or first policy; --force replaces it"
            )
        return True

    def _begins_with(self, policy: "PlacementPolicy | None") -> bool:
        if policy is None or not self.first_policy.exists():
            return policy is None and not self.first_policy.exists()
        own, other = read_policy(self.first_policy).state_dict(), policy.state_dict()
        return own.keys() == other.keys() and all(
            own[name].equal(value) for name, value in other.items()
        )

    def save_placements(
        self, problems: Sequence[PlacementProblem], placements: Sequence[Any]
    ) -> list[Path]:
        """Write the best placements, of which some may be None, and return their files."""
        paths = []
        for number, (problem, placement) in enumerate(zip(problems, placements, strict=True)):
            if placement is not None:
                path = self.path / f"placement-{number}.json"
                with writing(path):
                    save_placement(placement, problem, path)
                paths.append(path)
        return paths

    def _problem(self, number: int) -> Path:
        return self.path / PROBLEM.format(number)


SettingsType = TypeVar("SettingsType", bound="DataclassInstance")


def parse_settings(
    pairs: Sequence[tuple[str, str]], updates: int | None, preset_name: str | None = None
) -> "Settings":
    """Return the hyperparameters of a training: those of a preset, with others in their place."""
    from placeto_policy import preset  # noqa: PLC0415 (torch takes seconds to import)

    given = {} if updates is None else {"updates": updates}
    if given and "updates" in dict(pairs):
        raise InputError("--hparam updates: excludes --updates")
    return changed_fields(preset(preset_name or "default"), pairs, given)


def changed_fields(
    settings: SettingsType,
    pairs: Sequence[tuple[str, str]],
    values: Mapping[str, Any],
    *,
    option: str = "--hparam",
) -> SettingsType:
    """Return a dataclass of hyperparameters with other values, some as texts of ``option``."""
    kinds = {field.name: field.type for field in fields(settings)}
    check_once([name for name, _ in pairs], f"{option} ")
    chosen = dict(values)
    for name, text in pairs:
        if name not in kinds:
            raise InputError(f"{option} {name}: expected one of {', '.join(kinds)}")
        try:
            chosen[name] = msgspec.convert(text, kinds[name], strict=False)
        except msgspec.ValidationError:
            texts = get_args(kinds[name])
            expected = not_among(text, texts) if texts else f"expected a number, got {text!r}"
            raise InputError(f"{option} {name}: {expected}") from None
    return replace(settings, **chosen)


def with_network_of(
    policy: "PlacementPolicy", settings: "Settings", pairs: Sequence[tuple[str, str]]
) -> "Settings":
    """Return hyperparameters with the network of a policy; refuse pairs that say otherwise."""
    network = {name: getattr(policy.settings, name) for name in NETWORK}
    for name, _ in pairs:
        if name in NETWORK and getattr(settings, name) != network[name]:
            raise InputError(
                f"--hparam {name}: expected {network[name]!r}, as in the policy of --from, "
                f"got {getattr(settings, name)!r}"
            )
    return replace(settings, **network)


def restored_settings(values: Mapping[str, Any]) -> "Settings":
    """Return the hyperparameters that a run was begun with; `InputError` if others are needed."""
    from placeto_policy import Settings  # noqa: PLC0415 (torch takes seconds to import)

    known = {field.name for field in fields(Settings)}
    if values.keys() != known:
        different = ", ".join(sorted(values.keys() ^ known))
        raise InputError(
            f"settings: expected the hyperparameters of this release, got others in {different}; "
            "train with --force to begin anew"
        )
    return Settings(**values)
