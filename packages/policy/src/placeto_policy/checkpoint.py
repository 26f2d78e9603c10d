"""Policies and whole trainings as files: safetensors, with everything else as JSON in them.

One file has both, so it is replaced as a whole or not at all.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from placeto_graphs import Evaluator, write_atomically
from placeto_policy.environment import Best
from placeto_policy.errors import PolicyError
from placeto_policy.policy import PlacementPolicy
from placeto_policy.settings import Settings
from placeto_policy.trainer import Trainer
from placeto_policy.workers import Processes

FORMAT = "placeto-policy"
VERSION = 5
# Versions of the features: with other ones a trained policy would place at random. They count up
# with every change of their numbers, which a test pins.
FEATURES = 1
FEATURES_OF_PAIRS = 2
POLICY = "policy."
BEST_POLICY = "best_policy."
AVERAGES = ("exp_avg", "exp_avg_sq")  # of Adam, for each parameter
Path = str | os.PathLike[str]
Tensors = dict[str, torch.Tensor]


class _GraphProgress(msgspec.Struct, forbid_unknown_fields=True):
    num_groups: int
    best_cost: float | None
    best_lacks_memory: bool = False


class _Progress(msgspec.Struct, forbid_unknown_fields=True):
    seed: int
    updates: int
    evaluations: int
    settings: Settings
    graphs: list[_GraphProgress]
    least_cost: float | None


class _Description(msgspec.Struct, forbid_unknown_fields=True):
    num_devices: int | None
    settings: Settings
    training: _Progress | None = None
    features: int = 1


def save_policy(policy: PlacementPolicy, path: Path) -> None:
    """Write a policy to a file, which is replaced as a whole.

    Parameters
    ----------
    policy
        Policy to write.
    path
        File of safetensors.

    Examples
    --------
    >>> save_policy(PlacementPolicy(num_devices=2), "policy.safetensors")
    >>> load_policy("policy.safetensors").num_devices
    2
    """
    description = _Description(policy.num_devices, policy.settings, features=_features(policy))
    _write(path, description, _policy_tensors(policy))


def load_policy(path: Path) -> PlacementPolicy:
    """Return the policy of a file that `save_policy` or `save_training` wrote.

    For a training it is the policy that the training leaves if it ends now; see
    `Settings.selection`.

    Parameters
    ----------
    path
        File to read.

    Raises
    ------
    PolicyError
        When the file has another format or version, or its tensors are not those of a policy.
    OSError
        When the file cannot be read.
    """
    with named(path):
        description, tensors = _read(path)
        progress = description.training
        has_best = progress is not None and progress.least_cost is not None
        return _restored_policy(description, tensors, BEST_POLICY if has_best else POLICY)


def save_training(trainer: Trainer, path: Path) -> None:
    """Write the state of a training to a file, which is replaced as a whole.

    `resume_training` resumes it. All its processes have the same state; the first one writes.

    Parameters
    ----------
    trainer
        Training to write.
    path
        File of safetensors.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> evaluator = BusiestDevice(two_chains())
    >>> trainer = Trainer([evaluator], Settings(updates=10))
    >>> _ = trainer.update()
    >>> save_training(trainer, "training.safetensors")
    >>> resume_training("training.safetensors", [evaluator]).updates
    1
    """
    if trainer.processes.rank:
        return
    tensors = _policy_tensors(trainer.policy)
    tensors |= {BEST_POLICY + name: weight for name, weight in trainer.best_policy.weights.items()}
    for name, parameter in trainer.policy.named_parameters():
        for average in AVERAGES if parameter in trainer.optimizer.state else ():
            tensors[f"adam.{average}.{name}"] = trainer.optimizer.state[parameter][average]
    graphs = []
    for index, (baseline, best) in enumerate(zip(trainer.baselines, trainer.best, strict=True)):
        graph = _GraphProgress(num_groups=baseline.means.shape[1], best_cost=None)
        tensors[f"baseline.{index}.means"] = torch.from_numpy(baseline.means)
        tensors[f"baseline.{index}.sizes"] = torch.from_numpy(baseline.spreads)
        if best:
            graph.best_cost = best.cost if math.isfinite(best.cost) else None
            graph.best_lacks_memory = best.lacks_memory
            tensors[f"best.{index}"] = torch.from_numpy(best.placement)
        graphs.append(graph)
    progress = _Progress(
        seed=trainer.seed,
        updates=trainer.updates,
        evaluations=trainer.evaluations,
        settings=trainer.settings,
        graphs=graphs,
        least_cost=trainer.best_policy.cost if trainer.best_policy.weights else None,
    )
    description = _Description(
        trainer.policy.num_devices, trainer.policy.settings, progress, _features(trainer.policy)
    )
    _write(path, description, tensors)


def resume_training(
    path: Path,
    evaluators: Sequence[Evaluator],
    *,
    processes: Processes | None = None,
    validation: Sequence[Evaluator] = (),
) -> Trainer:
    """Return the training of a file that `save_training` wrote.

    With the same number of processes it reaches the same weights as without an interruption, to the
    last bit. All random streams begin in each update, from the seed, the update and the worker.

    Parameters
    ----------
    path
        File to read.
    evaluators
        Evaluators of the training, in the same order.
    processes
        Processes that train together; see `join_processes`.
    validation
        Evaluators of the graphs for validation; see `Trainer`.

    Raises
    ------
    PolicyError
        When the file has another format, or is of other graphs.
    OSError
        When the file cannot be read.
    """
    with named(path):
        description, tensors = _read(path)
        progress = description.training
        if progress is None:
            raise PolicyError("expected a training, got a policy alone")
        expected_group_counts = [graph.num_groups for graph in progress.graphs]
        group_counts = [evaluator.problem.num_groups for evaluator in evaluators]
        if group_counts != expected_group_counts:
            raise PolicyError(
                f"expected evaluators of graphs of {expected_group_counts} groups, "
                f"got {group_counts}"
            )
        trainer = Trainer(
            evaluators,
            progress.settings,
            seed=progress.seed,
            policy=_restored_policy(description, tensors, POLICY),
            processes=processes,
            validation=validation,
        )
        _restore(trainer, progress, tensors)
        return trainer


def _restore(trainer: Trainer, progress: _Progress, tensors: Tensors) -> None:
    """Bring a new trainer to the progress of a file."""
    trainer.updates, trainer.evaluations = progress.updates, progress.evaluations
    settings = trainer.settings
    steps = progress.updates * settings.epochs * settings.minibatches  # of Adam
    for name, parameter in trainer.policy.named_parameters() if steps else ():
        averages = {
            average: _tensor(tensors, f"adam.{average}.{name}", parameter).clone()
            for average in AVERAGES
        }
        trainer.optimizer.state[parameter] = {"step": torch.tensor(float(steps)), **averages}
    for index, (baseline, graph) in enumerate(zip(trainer.baselines, progress.graphs, strict=True)):
        name = f"baseline.{index}"
        rounds = min(tensors.get(f"{name}.sizes", torch.empty(0)).numel(), settings.baseline_window)
        means = torch.empty(rounds, graph.num_groups, dtype=torch.float64)
        baseline.means = _tensor(tensors, f"{name}.means", means).numpy()
        baseline.spreads = _tensor(tensors, f"{name}.sizes", means[:, 0]).numpy()
        if graph.best_cost is not None:
            like = torch.empty(graph.num_groups, dtype=torch.int32)
            placement = _tensor(tensors, f"best.{index}", like).numpy()
            trainer.best[index] = Best(graph.best_lacks_memory, graph.best_cost, placement)
    if progress.least_cost is not None:
        trainer.best_policy.cost = progress.least_cost
        trainer.best_policy.weights = weights_like(trainer.policy, tensors, BEST_POLICY)


def _features(policy: PlacementPolicy) -> int:
    """Return the version of the features of such a policy."""
    return FEATURES_OF_PAIRS if policy.settings.embedding == "pairs" else FEATURES


def _policy_tensors(policy: PlacementPolicy) -> Tensors:
    return {f"{POLICY}{name}": tensor for name, tensor in policy.state_dict().items()}


def _write(path: Path, description: _Description, tensors: Tensors) -> None:
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "description": msgspec.json.encode(description).decode(),
    }
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(contiguous, metadata))


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let errors begin with the name of the file."""
    try:
        yield
    except PolicyError as error:
        raise PolicyError(f"{os.fspath(path)}: {error}") from None


def _read(path: Path) -> tuple[_Description, Tensors]:
    with open(path, "rb"):
        pass  # a file that cannot be read is the system's error, not the format's
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            metadata = file.metadata() or {}
            for name, expected in (("format", FORMAT), ("version", str(VERSION))):
                if metadata.get(name) != expected:
                    raise PolicyError(f"expected {name} {expected!r}, got {metadata.get(name)!r}")
            if "description" not in metadata:
                raise PolicyError("expected a description, got none")
            description = msgspec.json.decode(metadata["description"], type=_Description)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PolicyError(f"expected a {FORMAT} file: {error}") from None
    return description, tensors


def _restored_policy(description: _Description, tensors: Tensors, prefix: str) -> PlacementPolicy:
    if description.num_devices is not None and description.num_devices < 1:
        raise PolicyError(f"num_devices: expected at least 1, got {description.num_devices}")
    policy = PlacementPolicy(description.num_devices, description.settings)
    if description.features != _features(policy):
        raise PolicyError(
            f"features: expected a policy that was trained with version {_features(policy)} of "
            f"its features, got {description.features}: train it again"
        )
    policy.load_state_dict(weights_like(policy, tensors, prefix))
    return policy


def weights_like(network: torch.nn.Module, tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors of a file that are all of a network; others of this prefix are refused."""
    state = network.state_dict()
    names = [name for name in tensors if name.startswith(prefix)]
    unknown = [name for name in names if name.removeprefix(prefix) not in state]
    if unknown:
        raise PolicyError(f"expected no tensor {unknown[0]!r} in such a policy")
    return {name: _tensor(tensors, prefix + name, like) for name, like in state.items()}


def _tensor(tensors: Tensors, name: str, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a file if it has the shape and type of another one, and is finite."""
    if name not in tensors:
        raise PolicyError(f"expected a tensor {name!r}, got none")
    tensor = tensors[name]
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise PolicyError(
            f"{name}: expected {like.dtype} of shape {tuple(like.shape)}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise PolicyError(f"{name}: expected finite numbers, got others")
    return tensor
