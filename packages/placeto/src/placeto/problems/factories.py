"""Models of users: calls of the function that a user names on the command line."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from placeto.errors import InputError
from placeto_graphs import error_line

if TYPE_CHECKING:
    from placeto_workloads import TrainingStep

WHAT_FACTORIES_RETURN = (
    "a model and example inputs, then a loss function, an optimizer, a mode, a mask_fraction, "
    "updates, parameter_bytes and experts_per_token where they are others than usual"
)


def find_factory(text: str) -> Callable[..., Any]:
    """Return the function that a user named as ``package.module:factory``.

    The current folder comes before libraries for this import, and behind them for later ones.
    """
    module_name, _, attribute = text.partition(":")
    sys.path.insert(0, folder := os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
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
        sys.path += [] if folder in sys.path else [folder]
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{text}: expected {module_name} to have {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{text}: expected something that can be called, got {found!r}")
    function: Callable[..., Any] = found
    return function


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the parameters of a function."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of what is written in C
        return {}
    return {name: parameter.default for name, parameter in parameters.items()}


def made_step(text: str, factory: Callable[..., Any], values: Mapping[str, Any]) -> "TrainingStep":
    """Call a factory, which ``text`` names, with values by name, and return the step it makes."""
    from placeto_workloads import TrainingStep  # noqa: PLC0415 (torch takes seconds to import)

    try:
        made = factory(**values)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{text}: {error_line(error)}") from error
    names = TrainingStep._fields
    if isinstance(made, Mapping):
        wrong = [f"{key!r} in it" for key in made if key not in names]
        wrong += [f"none of {key}" for key in names[:2] if key not in made]
        if wrong:
            raise InputError(f"{text}: expected a mapping of {', '.join(names)}, got {wrong[0]}")
        parts: dict[str, Any] = dict(made)
    elif isinstance(made, tuple) and 2 <= len(made) <= len(names):
        parts = dict(zip(names, made, strict=False))
    else:
        raise InputError(f"{text}: expected {WHAT_FACTORIES_RETURN}, got {type(made).__name__}")
    # None stands for what is usual.
    parts = {
        name: part
        for name, part in parts.items()
        if part is not None or name not in TrainingStep._field_defaults
    }
    step = TrainingStep(**parts)
    check_optimizer(text, step.model, step.optimizer)
    inputs = step.example_inputs
    return step._replace(example_inputs=tuple(inputs) if isinstance(inputs, list) else inputs)


def check_optimizer(text: str, model: Any, given: Any) -> None:
    """Refuse what neither makes an optimizer nor is one of the model's own weights."""
    if given is None or not hasattr(given, "param_groups"):
        if given is not None and not callable(given):
            raise InputError(
                f"{text}: expected an optimizer, or a function of parameters that makes one, "
                f"got {type(given).__name__}"
            )
        return
    own = {id(weight) for weight in model.parameters()}
    if any(id(weight) not in own for group in given.param_groups for weight in group["params"]):
        raise InputError(f"{text}: expected an optimizer of parameters of the model")
