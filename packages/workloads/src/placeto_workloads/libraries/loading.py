"""Libraries that are not always installed, and their models without memory for weights."""

import difflib
import importlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from placeto_graphs import error_line
from placeto_workloads.errors import WorkloadError
from placeto_workloads.models.training_step import seeded

NUM_SUGGESTIONS = 5
# What to do about an error of a model's own.
ADVICE = (
    "if it needs other settings or inputs, name a function of your own that makes the model and "
    "its inputs, package.module:function"
)
Model = TypeVar("Model", bound=nn.Module)


def import_library(name: str, extra: str) -> ModuleType:
    """Import a library of models; an error names the extra that installs it."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a library for another build of PyTorch fails in any way
        expected = f"a library that can be imported, got {error_line(error)}"
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if missing.partition(".")[0] == name.partition(".")[0]:
            expected = f"it to be installed: pip install 'placeto-workloads[{extra}]'"
        raise WorkloadError(f"{name}: expected {expected}") from error


def such_as(name: str, names: Collection[str]) -> str:
    """Return names that are like a name, as words for an error; nothing if none is."""
    similar_names = difflib.get_close_matches(name, names, NUM_SUGGESTIONS)
    return f", such as {', '.join(similar_names)}" if similar_names else ""


@contextmanager
def offline() -> Iterator[None]:
    """Let the hub of models answer nothing, whatever a configuration asks it for."""
    try:
        constants: Any = importlib.import_module("huggingface_hub.constants")
    except ModuleNotFoundError:
        yield
        return
    was_offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a file of JSON, such as a configuration."""
    try:
        mapping = json.loads(path.read_bytes())
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: expected JSON, got {error_line(error)}") from error
    if not isinstance(mapping, dict):
        raise WorkloadError(f"{path}: expected a mapping, got {type(mapping).__name__}")
    return mapping


def build_on_device(
    source: str, make: Callable[[], Model], device: torch.device | str, seed: int
) -> Model:
    """Build a model of a source, such as ``timm:resnet50``, on a device, without the hub."""
    try:
        with offline(), seeded(seed):
            if torch.device(device).type != "meta":
                return make().to(device)
            try:
                with _weights_on_meta():
                    return make()
            except (MemoryError, RuntimeError) as error:
                if "can't allocate memory" not in str(error):
                    raise
                with torch.device("meta"):  # one weight alone is too large to be made
                    return make()
    except WorkloadError:
        raise
    except Exception as error:
        raise WorkloadError(f"{source}: {error_line(error)}; {ADVICE}") from error


def first_number(config: Any, *keys: str) -> int | None:
    """Return the first of some settings that is a number above 0, or begins with one."""
    for key in keys:
        value = config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
        if isinstance(value, list | tuple) and value and isinstance(config, Mapping):
            value = value[0]
        if isinstance(value, int) and value > 0:
            return value
    return None


@contextmanager
def _weights_on_meta() -> Iterator[None]:
    """Move each weight as soon as a module gets it: what was made for it is unused memory yet."""
    moved: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # so that tied weights stay tied

    def move(_module: nn.Module, _name: str, weight: Any) -> Any:
        if type(weight) is not nn.Parameter or weight.is_meta:
            return None
        if id(weight) not in moved:
            meta_weight = nn.Parameter(
                weight.detach().to("meta"), requires_grad=weight.requires_grad
            )
            moved[id(weight)] = weight, meta_weight
        return moved[id(weight)][1]

    hook = register_module_parameter_registration_hook(move)
    try:
        yield
    finally:
        hook.remove()
