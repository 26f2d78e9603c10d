"""A training as a file, and in a folder in which it goes on after it was cut.

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

from placeto_experiments.enas.search import Search
from placeto_experiments.enas.settings import Settings
from placeto_experiments.enas.tasks import Task
from placeto_graphs import write_atomically
from placeto_workloads.errors import WorkloadError
from placeto_workloads.families.trajectory import Trajectory, save_trajectory

FORMAT = "placeto-enas"
VERSION = 1
CHECKPOINT = "search.safetensors"
ARCHITECTURES = "architectures.json"
_SCALARS = ("step",)  # of optimizers; all else has the shape of its parameter


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
    """Train to the last round, from where the folder has come to.

    Parameters
    ----------
    task
        Super-network and data.
    settings
        All hyperparameters.
    folder
        Where ``search.safetensors`` and ``architectures.json`` are kept after each round; it is
        made where it is not there.
    seed
        Of the training.
    report
        Called after each round, with the training and the mean reward of the round.

    Returns
    -------
    Search
        The training, at its end. It is the same whether it was cut or not.

    Raises
    ------
    WorkloadError
        When the folder holds another training, or a file that is none.
    OSError
        When the folder cannot be written.

    Examples
    --------
    >>> from placeto_experiments.enas import TextTask, grammar_text
    >>> task = TextTask(grammar_text(num_sentences=50), num_nodes=2, units=4, steps=3)
    >>> settings = Settings(rounds=2, shared_steps=2, controller_steps=3)
    >>> search = train(task, settings, "run")
    >>> sorted(path.name for path in Path("run").iterdir())
    ['architectures.json', 'search.safetensors']
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
    """Write all that a training has come to.

    Parameters
    ----------
    search
        The training.
    path
        The file, which is replaced at once.

    Examples
    --------
    See `resume_search`.
    """
    description = _Description(
        dict(search.task.description), search.settings, search.seed, search.rounds, search.baseline
    )
    tensors = {
        **_module_tensors("controller", search.controller, search.controller_optimizer),
        **_module_tensors("shared", search.task.network, search.shared_optimizer),
    }
    trajectory = search.trajectory
    for name in ("rounds", "choices", "rewards"):
        tensors[f"trajectory.{name}"] = torch.from_numpy(getattr(trajectory, name))
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "description": msgspec.json.encode(description).decode(),
    }
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(contiguous, metadata))


def resume_search(path: str | os.PathLike[str], task: Task) -> Search:
    """Return the training of a file that `save_search` wrote, to go on from there.

    Parameters
    ----------
    path
        The file.
    task
        The one that was trained on, as new; its weights are those of the file afterwards.

    Raises
    ------
    WorkloadError
        When the file is none, is of another version, or of another task.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> from placeto_experiments.enas import TextTask, grammar_text
    >>> task = TextTask(grammar_text(num_sentences=50), num_nodes=2, units=4, steps=3)
    >>> search = Search(task, Settings(rounds=2, shared_steps=2, controller_steps=3))
    >>> _ = search.round()
    >>> save_search(search, "search.safetensors")
    >>> resume_search("search.safetensors", task).rounds
    1
    """
    description, tensors = _read(path)
    _check_same(path, "task", description.task, dict(task.description))
    if description.rounds < 0:
        raise WorkloadError(f"{path}: rounds: expected at least 0, got {description.rounds}")
    search = Search(task, description.settings, seed=description.seed)
    _restore(path, "controller", search.controller, search.controller_optimizer, tensors)
    _restore(path, "shared", task.network, search.shared_optimizer, tensors)
    try:
        search.restore_trajectory(_trajectory(task, tensors))
    except (KeyError, TypeError, WorkloadError) as error:
        raise WorkloadError(f"{path}: trajectory: expected architectures: {error}") from None
    search.rounds = description.rounds
    search.baseline = description.baseline
    return search


def _trajectory(task: Task, tensors: Mapping[str, Tensor]) -> Trajectory:
    rounds, choices, rewards = (
        tensors[f"trajectory.{name}"].numpy() for name in ("rounds", "choices", "rewards")
    )
    return Trajectory(task.space, rounds, choices, rewards, dict(task.description))


def _module_tensors(
    prefix: str, module: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        tensors[f"{prefix}.weight.{name}"] = parameter
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{prefix}.{key}.{name}"] = value
    return tensors


def _restore(
    path: str | os.PathLike[str],
    prefix: str,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
) -> None:
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        given = f"{prefix}.weight.{name}"
        _check_tensor(path, given, tensors.get(given), parameter.shape, parameter.dtype)
        with torch.no_grad():
            parameter.copy_(tensors[given])
    for given, value in tensors.items():
        owner, _, rest = given.partition(".")
        key, _, name = rest.partition(".")
        if owner != prefix or key == "weight":
            continue
        if name not in parameters:
            raise WorkloadError(f"{path}: expected no tensor {given!r}")
        shape = torch.Size() if key in _SCALARS else parameters[name].shape
        _check_tensor(path, given, value, shape, torch.float32)
        optimizer.state[parameters[name]][key] = value.clone()


def _check_tensor(
    path: str | os.PathLike[str],
    name: str,
    found: Tensor | None,
    shape: torch.Size,
    dtype: torch.dtype,
) -> None:
    if found is None:
        raise WorkloadError(f"{path}: expected a tensor {name!r}, found none")
    if found.shape != shape or found.dtype != dtype:
        raise WorkloadError(
            f"{path}: {name}: expected {dtype} of shape {tuple(shape)}, "
            f"got {found.dtype} of shape {tuple(found.shape)}"
        )


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
            _check_format(path, metadata)
            description = msgspec.json.decode(metadata.get("description", ""), type=_Description)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: expected a {FORMAT} file: {error}") from None
    return description, tensors


def _check_format(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
    found = (metadata.get("format"), metadata.get("version"))
    if found != (FORMAT, str(VERSION)):
        raise WorkloadError(
            f"{path}: expected format {FORMAT!r}, version {VERSION}, got {found[0]!r}, {found[1]}"
        )
