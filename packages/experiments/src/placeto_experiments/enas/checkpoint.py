"""A training as a file, and in a folder in which it resumes after it was cut.

Tensors are safetensors, everything else is JSON in them: one file, replaced at once.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from placeto_experiments.enas.search import Search, Settings
from placeto_experiments.enas.tasks import Task
from placeto_graphs import write_atomically
from placeto_workloads import WorkloadError
from placeto_workloads.families.trajectory import Trajectory, save_trajectory

FORMAT = "placeto-enas"
VERSION = 1
CHECKPOINT = "search.safetensors"
ARCHITECTURES = "architectures.json"


class _Description(msgspec.Struct, forbid_unknown_fields=True):
    task: dict[str, str | int | float]
    settings: Settings
    seed: int
    rounds: int
    baseline: float | None


def train(
    task: Task,
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    report: Callable[[Search, float], None] | None = None,
) -> Search:
    """Train to the last round, from the round that the folder has reached.

    It ends in the same weights whether it was cut or not. The folder holds ``search.safetensors``
    and ``architectures.json``, which are written after each round; a folder of another training
    raises a `WorkloadError`. After each round the training and its mean reward are reported.

    Examples
    --------
    >>> from placeto_experiments.enas import TextTask, grammar_text
    >>> task = TextTask(grammar_text(num_sentences=50), num_nodes=2, units=4, steps=3)
    >>> settings = Settings(rounds=2, shared_steps=2, controller_steps=3)
    >>> search = train(task, settings, "run")
    >>> resume_search("run/search.safetensors", task).rounds
    2
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    checkpoint = place / CHECKPOINT
    if checkpoint.exists():
        search = resume_search(checkpoint, task)
        _check_same(checkpoint, "settings", search.settings, settings)
        _check_same(checkpoint, "seed", search.seed, seed)
        save_trajectory(search.trajectory, place / ARCHITECTURES)  # it may be a round behind
    else:
        search = Search(task, settings, seed=seed)
    while search.rounds < settings.rounds:
        mean_reward = search.round()
        save_search(search, checkpoint)
        save_trajectory(search.trajectory, place / ARCHITECTURES)
        if report:
            report(search, mean_reward)
    return search


def save_search(search: Search, path: str | os.PathLike[str]) -> None:
    """Write a training to a file, which is replaced at once."""
    description = _Description(
        dict(search.task.description), search.settings, search.seed, search.rounds, search.baseline
    )
    tensors: dict[str, Tensor] = {}
    for prefix, (module, optimizer) in _trained(search).items():
        for name, parameter in module.named_parameters():
            state = {"weight": parameter, **optimizer.state.get(parameter, {})}
            tensors |= {f"{prefix}.{key}.{name}": v for key, v in state.items() if v is not None}
    trajectory = search.trajectory
    for field in ("rounds", "choices", "rewards"):
        tensors[f"trajectory.{field}"] = torch.from_numpy(getattr(trajectory, field))
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "description": msgspec.json.encode(description).decode(),
    }
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(contiguous, metadata))


def resume_search(path: str | os.PathLike[str], task: Task) -> Search:
    """Return the training of a file that `save_search` wrote, to resume it.

    The task is as new; its weights are those of the file afterwards. A file that is none, or is of
    another version or task, raises a `WorkloadError`.
    """
    description, tensors = _read(path)
    _check_same(path, "task", description.task, dict(task.description))
    if description.rounds < 0:
        raise WorkloadError(f"{path}: rounds: expected at least 0, got {description.rounds}")
    search = Search(task, description.settings, seed=description.seed)
    try:
        search.restore_trajectory(
            Trajectory(
                task.space,
                tensors.pop("trajectory.rounds").numpy(),
                tensors.pop("trajectory.choices").numpy(),
                tensors.pop("trajectory.rewards").numpy(),
                dict(task.description),
            )
        )
    except (KeyError, TypeError, WorkloadError) as error:
        raise WorkloadError(f"{path}: trajectory: expected architectures: {error}") from None
    for prefix, trained in _trained(search).items():
        _restore(path, prefix, *trained, tensors)
    search.rounds = description.rounds
    search.baseline = description.baseline
    return search


def _trained(search: Search) -> dict[str, tuple[nn.Module, torch.optim.Optimizer]]:
    return {
        "controller": (search.controller, search.controller_optimizer),
        "shared": (search.task.network, search.shared_optimizer),
    }


def _restore(
    path: str | os.PathLike[str],
    prefix: str,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
) -> None:
    parameters = dict(module.named_parameters())
    missing = [name for name in parameters if f"{prefix}.weight.{name}" not in tensors]
    if missing:
        raise WorkloadError(f"{path}: expected a tensor '{prefix}.weight.{missing[0]}', found none")
    for given, value in tensors.items():
        owner, _, rest = given.partition(".")
        key, _, name = rest.partition(".")
        if owner != prefix:
            continue
        if name not in parameters:
            raise WorkloadError(f"{path}: expected no tensor {given!r}")
        parameter = parameters[name]
        shape = torch.Size() if key == "step" else parameter.shape  # the rest is per weight
        if value.shape != shape or value.dtype != torch.float32:
            raise WorkloadError(
                f"{path}: {given}: expected torch.float32 of shape {tuple(shape)}, "
                f"got {value.dtype} of shape {tuple(value.shape)}"
            )
        if key == "weight":
            parameter.data.copy_(value)
        else:
            optimizer.state[parameter][key] = value.clone()


def _check_same(path: str | os.PathLike[str], field: str, found: object, given: object) -> None:
    if found != given:
        raise WorkloadError(
            f"{path}: {field}: expected that of the training in this folder, {found}; got {given}"
        )


def _read(path: str | os.PathLike[str]) -> tuple[_Description, dict[str, Tensor]]:
    with open(path, "rb"):
        pass  # a file that cannot be read is the system's error, not the format's
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            metadata = file.metadata() or {}
            found = (metadata.get("format"), metadata.get("version"))
            if found != (FORMAT, str(VERSION)):
                raise WorkloadError(
                    f"{path}: expected format {FORMAT!r}, version {VERSION}, "
                    f"got {found[0]!r}, {found[1]}"
                )
            description = msgspec.json.decode(metadata.get("description", ""), type=_Description)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: expected a {FORMAT} file: {error}") from None
    return description, tensors
