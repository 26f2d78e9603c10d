"""Models: calls of a user's function, and graphs of known models, captured once and kept.

Graphs are in the user's cache folder, those used last. The folder may be deleted at any time. A
file that is damaged, or a folder that cannot be written, costs a capture and nothing else.
"""

import hashlib
import importlib
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeto.errors import InputError
from placeto_graphs import GraphError, OpGraph, error_line, load_graph, save_graph
from placeto_workloads import training_step

if TYPE_CHECKING:
    import torch

    from placeto_capture import Target
    from placeto_workloads import FamilyMember, TrainingStep

WHAT_FACTORIES_RETURN = (
    "a model and example inputs, then a loss function, an optimizer, a mode, a mask_fraction, "
    "updates, parameter_bytes, experts_per_token and a cache where they are others than usual"
)
FOLDER_VARIABLE = "PLACETO_CACHE_DIR"
MOST_BYTES = 2 * 10**9  # of all graphs
# What decides how a graph comes out: the rest of the packages may change and the graphs stay valid.
SOURCES = (
    "placeto_capture.costs",
    "placeto_capture.tracing",
    "placeto_workloads.libraries",
    "placeto_workloads.models",
)


def find_factory(text: str) -> Callable[..., Any]:
    """Return the function that a user named as ``package.module:factory``."""
    module_name, _, attribute = text.partition(":")
    # The current folder comes before libraries for this import, and behind them for later ones.
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        factory: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        stem, suffix = os.path.splitext(module_name)
        if suffix == ".py" and os.path.exists(module_name):
            raise InputError(
                f"{text}: expected a module, got a file; write {stem}:{attribute}"
            ) from error
        raise InputError(
            f"{text}: expected a module that can be imported, got {error_line(error)}"
        ) from error
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
    for name in attribute.split("."):
        if not hasattr(factory, name):
            raise InputError(f"{text}: expected {module_name} to have {name!r}")
        factory = getattr(factory, name)
    if not callable(factory):
        raise InputError(f"{text}: expected something that can be called, got {factory!r}")
    function: Callable[..., Any] = factory
    return function


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the parameters of a function."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of what is written in C
        return {}
    return {name: parameter.default for name, parameter in parameters.items()}


def make_step(text: str, factory: Callable[..., Any], values: Mapping[str, Any]) -> "TrainingStep":
    """Call a factory, which ``text`` names, with values by name, and return the step it makes."""
    from placeto_workloads import TrainingStep  # noqa: PLC0415 (torch takes seconds to import)

    try:
        returned = factory(**values)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{text}: {error_line(error)}") from error
    names = TrainingStep._fields
    if isinstance(returned, Mapping):
        wrong = [f"{key!r} in it" for key in returned if key not in names]
        wrong += [f"none of {key}" for key in names[:2] if key not in returned]
        if wrong:
            raise InputError(f"{text}: expected a mapping of {', '.join(names)}, got {wrong[0]}")
        fields: dict[str, Any] = dict(returned)
    elif isinstance(returned, tuple) and 2 <= len(returned) <= len(names):
        fields = dict(zip(names, returned, strict=False))
    else:
        raise InputError(f"{text}: expected {WHAT_FACTORIES_RETURN}, got {type(returned).__name__}")
    # None stands for what is usual.
    fields = {
        name: value
        for name, value in fields.items()
        if value is not None or name not in TrainingStep._field_defaults
    }
    step = TrainingStep(**fields)
    check_optimizer(text, step.model, step.optimizer)
    inputs = step.example_inputs
    return step._replace(example_inputs=tuple(inputs) if isinstance(inputs, list) else inputs)


def check_optimizer(text: str, model: Any, optimizer: Any) -> None:
    """Refuse what neither makes an optimizer nor is one of the model's own weights."""
    if optimizer is None or not hasattr(optimizer, "param_groups"):
        if optimizer is not None and not callable(optimizer):
            raise InputError(
                f"{text}: expected an optimizer, or a function of parameters that makes one, "
                f"got {type(optimizer).__name__}"
            )
        return
    parameter_ids = {id(weight) for weight in model.parameters()}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    if any(id(weight) not in parameter_ids for weight in weights):
        raise InputError(f"{text}: expected an optimizer of parameters of the model")


def load_model_graph(
    name: str, target: "Target" = "gpu", /, *, autocast: "torch.dtype | None" = None, **sizes: int
) -> OpGraph:
    """Return the graph of one training step of a registered model, with Adam.

    It is captured once and kept in the user's cache folder: ``$PLACETO_CACHE_DIR/graphs``, else
    ``placeto/graphs`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. Another version of PyTorch or of
    the source captures anew.

    Parameters
    ----------
    name
        One of `placeto_workloads.MODELS`.
    target, autocast
        As of `placeto_capture.capture`.
    **sizes
        Other sizes than the published ones; ``placeto_workloads.MODELS[name].sizes`` lists them.

    Raises
    ------
    placeto_workloads.WorkloadError
        If there is no such model or size, or the sizes make no network.
    placeto_capture.CaptureError
        If there is no such target.

    Examples
    --------
    >>> from placeto import load_model_graph
    >>> graph = load_model_graph("nmt-2", steps=4, batch_size=8, units=16, vocabulary_size=100)
    >>> "encoder.layer1.step3" in graph.scopes
    True
    """
    return cached_step(
        name,
        sizes,
        lambda: training_step(name, device="meta", seed=0, **sizes),
        target=target,
        autocast=autocast,
    )


def family_graph(
    member: "FamilyMember", target: "Target" = "gpu", *, autocast: "torch.dtype | None" = None
) -> OpGraph:
    """Return the graph of a training step of a family graph, from the cache if it was captured.

    Parameters
    ----------
    member
        The family graph.
    target, autocast
        As of `placeto_capture.capture`.

    Examples
    --------
    >>> from placeto import family_graph
    >>> from placeto_workloads import family
    >>> cifar10 = family("cifar10", cells_per_stage=1, filters=2)
    >>> cifar10.grouping(family_graph(cifar10.test[0])).num_groups
    128
    """
    parameters: dict[str, Any] = {**member.sizes, "architecture": member.architecture}
    name, make = f"family-{member.family}", member.training_step
    return cached_step(name, parameters, make, target=target, autocast=autocast)


def cached_step(
    name: str,
    parameters: Mapping[str, object],
    make: "Callable[[], TrainingStep]",
    **capture_options: Any,
) -> OpGraph:
    """Return the graph of a step from the cache (`cached_graph`), or as `capture_step` does."""
    all_parameters = {"sizes": sorted(parameters.items()), **capture_options}
    return cached_graph(name, all_parameters, lambda: capture_step(make(), **capture_options))


def capture_step(
    step: "TrainingStep", target: "Target" = "gpu", *, autocast: "torch.dtype | None" = None
) -> OpGraph:
    """Return the graph of a training step, with Adam unless it has another optimizer.

    Parameters
    ----------
    step
        The step.
    target, autocast
        As of `placeto_capture.capture`.

    Examples
    --------
    >>> from placeto import capture_step
    >>> from placeto_workloads import training_step
    >>> step = training_step("nmt-2", steps=2, batch_size=2, units=8, vocabulary_size=10)
    >>> "aten.addmm" in capture_step(step).op_types
    True
    """
    from placeto_capture import capture  # noqa: PLC0415 (torch takes seconds to import)

    return capture(**step._asdict(), target=target, autocast=autocast)


def cached_graph(
    name: str, parameters: Mapping[str, object], make: Callable[[], OpGraph]
) -> OpGraph:
    """Return a graph from the cache; make it and keep it, if it is not there.

    The name is a part of a file name. Parameters are all else that decides what graph it is, with
    the same ``repr`` in every process; PyTorch's version and the sources of the tracer count
    anyway. A graph of which something is to be said, by a warning, is made again to say it again.
    """
    folder = cache_folder()
    if folder is None:
        return make()
    described = {
        "name": name,
        "parameters": {key: repr(value) for key, value in parameters.items()},
        "torch": version("torch"),
        "source": _source_digest(),
    }
    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
    path = folder / f"{name}-{key}.json.gz"
    with suppress(OSError, GraphError):
        graph = load_graph(path)
        with suppress(OSError):
            os.utime(path)
        return graph
    with warnings.catch_warnings(record=True) as caught:
        graph = make()
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if caught:
        return graph
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        save_graph(graph, path)
        _make_room(folder)
    return graph


def cache_folder() -> Path | None:
    """Return the folder of captured graphs, or None where the user has no home."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named) / "graphs"
    of_system = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if of_system.is_absolute():  # the XDG specification wants others ignored
        return of_system / "placeto" / "graphs"
    try:
        return Path.home() / ".cache" / "placeto" / "graphs"
    except RuntimeError:
        return None


def _make_room(folder: Path) -> None:
    """Delete graphs beyond `MOST_BYTES`: those used longest ago, and one that alone is larger."""
    files = {path: path.stat() for path in folder.glob("*.json.gz")}
    total = 0
    for path in sorted(files, key=lambda path: files[path].st_mtime_ns, reverse=True):
        if total + files[path].st_size <= MOST_BYTES:
            total += files[path].st_size
        else:
            path.unlink(missing_ok=True)  # another process may have deleted it


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for name in SOURCES:
        folder = resources.files(name)
        for path in sorted(Path(str(folder)).rglob("*.py")):
            digest.update(f"{name}/{path.relative_to(str(folder)).as_posix()}\0".encode())
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
