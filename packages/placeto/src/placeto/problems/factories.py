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

PARTS = (
    *("model", "example_inputs", "loss_fn", "optimizer", "mode", "mask_fraction", "updates"),
    *("parameter_bytes", "experts_per_token"),
)
WHAT_FACTORIES_RETURN = (
    "a model and example inputs, then a loss function, an optimizer, a mode, a mask_fraction, "
    "updates, parameter_bytes and experts_per_token where they are others than usual"
)


def find_factory(text: str) -> Callable[..., Any]:
    """Return the function that a user named as ``package.module:factory``."""
    module_name, _, attribute = text.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:  # a console script has its own folder
        sys.path.insert(0, os.getcwd())
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
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{text}: expected {module_name} to have {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{text}: expected something that can be called, got {found!r}")
    function: Callable[..., Any] = found
    return function


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the parameters of a function.

    Examples
    --------
    >>> def make(batch_size=8): ...
    >>> defaults_of(make)
    {'batch_size': 8}
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of what is written in C
        return {}
    return {name: parameter.default for name, parameter in parameters.items()}


def made_step(text: str, factory: Callable[..., Any], values: Mapping[str, Any]) -> "TrainingStep":
    """Call a factory with values by name, and return the step that it makes.

    Raises
    ------
    InputError
        If it fails, or does not return a step; ``text`` is its name in the message.
    """
    from placeto_workloads import TrainingStep  # noqa: PLC0415 (torch takes seconds to import)

    try:
        made = factory(**values)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{text}: {error_line(error)}") from error
    if isinstance(made, TrainingStep):  # of this project, so that nothing has to be checked
        return made
    return step_of(text, _parts(text, made))


def step_of(text: str, parts: Mapping[str, Any]) -> "TrainingStep":
    """Return a step of its parts by name, see `PARTS`; None stands for the default."""
    from placeto_workloads import TrainingStep  # noqa: PLC0415 (torch takes seconds to import)

    inputs = parts["example_inputs"]
    if not isinstance(inputs, Mapping):
        inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return TrainingStep(
        parts["model"],
        inputs,
        parts.get("loss_fn"),
        optimizer=_optimizer(text, parts["model"], parts.get("optimizer")),
        mode=parts.get("mode") or "training",
        mask_fraction=parts.get("mask_fraction"),
        updates=parts.get("updates") or "after-backward",
        parameter_bytes=parts.get("parameter_bytes"),
        experts_per_token=parts.get("experts_per_token") or 1,
    )


def _parts(text: str, made: Any) -> dict[str, Any]:
    """Return the parts of a step by name, from a tuple or a mapping of them."""
    if isinstance(made, Mapping):
        unknown = [repr(key) for key in made if key not in PARTS]
        missing = [key for key in PARTS[:2] if key not in made]
        if unknown or missing:
            wrong = f"{unknown[0]} in it" if unknown else f"none of {missing[0]}"
            raise InputError(f"{text}: expected a mapping of {', '.join(PARTS)}, got {wrong}")
        return dict(made)
    if not (isinstance(made, tuple) and 2 <= len(made) <= len(PARTS)):
        raise InputError(f"{text}: expected {WHAT_FACTORIES_RETURN}, got {type(made).__name__}")
    return dict(zip(PARTS, made, strict=False))


def _optimizer(text: str, model: Any, given: Any) -> Any:
    """Return what makes an optimizer; of one of the model's own weights, one like it."""
    if given is None or not hasattr(given, "param_groups"):
        if given is not None and not callable(given):
            raise InputError(
                f"{text}: expected an optimizer, or a function of parameters that makes one, "
                f"got {type(given).__name__}"
            )
        return given
    position = {id(weight): number for number, weight in enumerate(model.parameters())}
    groups = given.param_groups
    if any(id(weight) not in position for group in groups for weight in group["params"]):
        raise InputError(f"{text}: expected an optimizer of parameters of the model")

    def make(parameters: Any) -> Any:
        weights = list(parameters)
        own = [[weights[position[id(weight)]] for weight in group["params"]] for group in groups]
        return type(given)(
            [{**group, "params": params} for group, params in zip(groups, own, strict=True)]
        )

    return make
