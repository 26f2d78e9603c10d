"""Placers and evaluators of users: their names, how they are made, and checks of their results.

A name is ``package.module:Class``, or what an installed package calls its class in an entry point.
Arguments follow behind colons: ``package.module:Class:depth=3:mode=fast``.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placeto.errors import WRONG_INPUT, InputError, check_once, exit_code
from placeto.problems.models import defaults_of, find_factory
from placeto.problems.sources import parse_sizes
from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    PlacementProblem,
    PlacementResult,
    Placer,
    ScheduleBatch,
    Walks,
    error_line,
)

PLACER_PLUGINS, EVALUATOR_PLUGINS = "placeto.placers", "placeto.evaluators"  # entry points
BEFORE_ARGUMENT = re.compile(r":(?=[A-Za-z_][\w-]*=)")
CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def plugin_names(group: str) -> list[str]:
    """Return the names that installed packages give their placers or evaluators."""
    return sorted(entry.name for entry in entry_points(group=group))


def is_own(text: str, group: str) -> bool:
    """Return whether a text names a class, or what an installed package calls one."""
    name, *_ = BEFORE_ARGUMENT.split(text)
    return CLASS.fullmatch(name) is not None or name in plugin_names(group)


@dataclass(frozen=True)
class OwnClass:
    """A class that a user named, with arguments for it."""

    text: str  # as it was named
    factory: Callable[..., Any]
    arguments: Mapping[str, Any]
    modules: tuple[str, ...]  # modules, packages and paths whose files decide what it does

    def make(self, *positional: Any, **limits: Any) -> Any:
        """Call it with its arguments, and with those limits that it has parameters for."""
        parameters = defaults_of(self.factory).keys() - self.arguments.keys()
        heeded = {name: limit for name, limit in limits.items() if name in parameters}
        with naming(self.text, self.factory):
            return self.factory(*positional, **self.arguments, **heeded)


def own_class(text: str, group: str) -> OwnClass:
    """Import what a user named; modules are looked for in the current folder first."""
    name, *pairs = BEFORE_ARGUMENT.split(text)
    plugins = {entry.name: f"{entry.module}:{entry.attr}" for entry in entry_points(group=group)}
    path = plugins.get(name, name)
    factory = find_factory(path)
    split = [pair.partition("=") for pair in pairs]
    named_values = [(argument.replace("-", "_"), value) for argument, _, value in split]
    check_once([argument for argument, _ in named_values], f"{text}: ")
    arguments = parse_sizes(named_values)
    modules = {path.partition(":")[0], getattr(factory, "__module__", None) or "builtins"}
    packages = {module.partition(".")[0] for module in modules}
    texts = [
        text for _, value in named_values for text in (value, *re.findall(r'"([^"]*)"', value))
    ]
    paths = {os.path.realpath(text) for text in texts if os.path.exists(text)}
    return OwnClass(text, factory, arguments, tuple(sorted(modules | packages | paths)))


def own_object(factory: Callable[..., Any]) -> OwnClass:
    """Return a class that was passed as an object."""
    name = getattr(factory, "__name__", type(factory).__name__)
    return OwnClass(name, factory, {}, (factory.__module__,))


@contextmanager
def naming(text: str, code: object = None) -> Iterator[None]:
    """Turn an error into one line that names the class, and the line of the user's file."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # no code that is named ends the command
        of_a_package = exit_code(error) == WRONG_INPUT  # so that it says what was expected
        reason = str(error) if of_a_package else error_line(error)
        raise InputError(f"{text}: {reason}{_place(error, code)}") from error


def _place(error: BaseException, code: object) -> str:
    """Return the last line of the user's file that ran; nothing where none did."""
    file = getattr(sys.modules.get(getattr(code, "__module__", "")), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""


def _lack(user_object: Any, *attributes: str) -> str:
    """Return which of some attributes an object lacks first."""
    lacking = [name for name in attributes if getattr(user_object, name, None) is None]
    return f"one without {lacking[0]!r}"


def _checked(name: str, user_object: Any, method: str, kind: type) -> Callable[..., Any]:
    """Return a method of a user's object whose errors name it, and whose result is of a kind."""

    def call(*arguments: Any, **named: Any) -> Any:
        with naming(name, user_object):
            returned = getattr(user_object, method)(*arguments, **named)
        if not isinstance(returned, kind):
            raise InputError(
                f"{name}: expected {method} to return {kind.__name__}, "
                f"got {type(returned).__name__}"
            )
        return returned

    return call


def checked_placer(name: str, placer: Any) -> Placer:
    """Return a placer of the user, whose errors name it, and whose results are placements."""
    if not isinstance(placer, Placer):
        raise InputError(f"{name}: expected a placer, got {_lack(placer, 'name', 'place')}")
    place = _checked(name, placer, "place", PlacementResult)

    def checked(
        problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        result: PlacementResult = place(problem, evaluator, seed=seed)
        with naming(name):
            problem.check_placement(result.placement)
        return result

    return cast(Placer, SimpleNamespace(name=name, place=checked))


def checked_evaluator(name: str, evaluator: Any, problem: PlacementProblem) -> Evaluator:
    """Return an evaluator of the user, whose errors name it, and whose costs are checked."""
    if not isinstance(evaluator, Evaluator):
        lack = _lack(evaluator, "problem", "evaluate")
        raise InputError(f"{name}: expected an evaluator, got {lack}")
    if evaluator.problem is not problem and evaluator.problem != problem:
        raise InputError(f"{name}: expected an evaluator of the problem that it is made with")
    evaluate = _checked(name, evaluator, "evaluate", EvaluationBatch)

    def checked(placements: NDArray[np.int32]) -> EvaluationBatch:
        batch: EvaluationBatch = evaluate(placements)
        expected = (len(placements), problem.num_devices)
        if batch.peak_memory.shape != expected:
            raise InputError(
                f"{name}: expected costs of {expected[0]} placements on {expected[1]} devices, "
                f"got peak_memory of shape {batch.peak_memory.shape}"
            )
        return batch

    # What not every evaluator has.
    optional = {"schedule": ScheduleBatch, "walk": Walks, "critical_groups": np.ndarray}
    methods = {
        method: _checked(name, evaluator, method, kind)
        for method, kind in optional.items()
        if hasattr(evaluator, method)
    }
    return SimpleNamespace(problem=evaluator.problem, evaluate=checked, **methods)
