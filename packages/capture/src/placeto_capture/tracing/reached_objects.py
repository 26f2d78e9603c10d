"""Puts back what a step changes in the caller's code: globals, closures, classes and objects."""

import dis
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import (
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch

CONTAINERS = {list, set, dict, deque, Counter, OrderedDict, defaultdict}
BASES = OrderedDict, dict, list, set, deque  # what empties and fills containers
MAX_DEPTH = 3  # of tensors in an object of a library: a cache has layers, which have tensors
MAX_LOOKED_INTO = 1_000  # elements of a container; one with more is put back all the same
REFERENCES = "__self__", "__func__", "__wrapped__", "fget", "func", "args", "keywords"
LIBRARIES = {*sys.stdlib_module_names, "torch", "placeto_capture"}
NAMING = {f"{what}_{kind}" for what in ("LOAD", "STORE", "DELETE") for kind in ("GLOBAL", "NAME")}
STATEFUL = "torch.amp.", "torch.nn.", "torch.optim."  # those of a library that are looked into


@contextmanager
def put_back(roots: Iterable[Any]) -> Iterator[None]:
    """Let what is reached from functions and objects be afterwards as it was.

    That is containers; attributes, also in ``__slots__``, of the caller's own classes and objects,
    of PyTorch's modules and schedules, and of library objects with tensors in them, such as a
    cache; and variables that functions name. Caches of `functools.lru_cache` are emptied.
    Iterators, generators of random numbers, arrays and other objects of libraries are not put back.
    """
    undo: list[Callable[[], Any]] = []
    seen: dict[int, Any] = {}
    to_see = list(roots)
    while to_see:
        found = to_see.pop()
        if id(found) not in seen and not issubclass(type(found), torch.Tensor | ModuleType):
            seen[id(found)] = found
            to_see += _inside(found, undo)
    try:
        yield
    finally:
        for each in undo:
            each()


def _inside(found: Any, undo: list[Callable[[], Any]]) -> list[Any]:
    """Return what is in an object, which is not asked itself, and add what puts it back."""
    kind, inside = type(found), []
    is_own_container = issubclass(kind, BASES) and _is_own(kind)
    if kind in CONTAINERS or is_own_container:
        base: Any = next(base for base in BASES if issubclass(kind, base))
        kept = dict(base.items(found)) if issubclass(base, dict) else [*base.__iter__(found)]
        undo.append(partial(_refill, base, found, kept))
        if len(kept) <= MAX_LOOKED_INTO:
            inside = [*kept, *(kept.values() if isinstance(kept, dict) else ())]
        if is_own_container:
            inside += [kind, _attributes(found)]
    elif kind is CellType:
        with suppress(ValueError):  # it is empty
            inside = [found.cell_contents]
            undo.append(partial(setattr, found, "cell_contents", *inside))
    elif kind is FunctionType:
        scope, names = found.__globals__, _names(found.__code__) if _is_own(found) else set()
        kept = {name: scope[name] for name in names if name in scope}
        undo.append(partial(_put_variables, scope, kept, names - kept.keys()))
        inside = [found.__closure__ or (), found.__defaults__, found.__kwdefaults__, *kept.values()]
    elif issubclass(kind, type) and _is_own(found):
        kept = {name: each for name, each in vars(found).items() if not name.startswith("__")}
        undo.append(partial(_put_attributes, found, kept))
        inside = [*kept.values()]
    elif issubclass(kind, tuple):
        inside = [*tuple.__iter__(found)]
    elif kind.__module__ in {"builtins", "functools"} and not issubclass(kind, type):  # methods
        undo += [found.cache_clear] if hasattr(found, "cache_clear") else []
        inside = [getattr(found, name) for name in REFERENCES if hasattr(found, name)]
    elif any(_is_own(each) or str(each.__module__).startswith(STATEFUL) for each in kind.__mro__):
        inside = [kind, _attributes(found), *_kept_in_slots(found, undo)]
    elif _is_of_library(found):
        kept = dict(_attributes(found))
        filled = [(each, each.copy()) for each in kept.values() if type(each) in {list, dict}]
        undo.append(partial(_put_holder, found, kept, filled, had_tensors=_holds_tensors(found)))
        inside = [each for each in _elements(found) if type(each) not in CONTAINERS]
    return inside


def _attributes(found: Any) -> dict[str, Any]:
    """Return the dictionary of an object's attributes, empty where it has none."""
    try:
        attributes = object.__getattribute__(found, "__dict__")
    except Exception:  # of a class that has one of its own
        return {}
    return attributes if type(attributes) is dict else {}


def _is_of_library(found: Any) -> bool:
    library = str(type(found).__module__).partition(".")[0]
    is_plain = library not in LIBRARIES or issubclass(type(found), SimpleNamespace)
    return is_plain and not issubclass(type(found), type)


def _elements(found: Any) -> list[Any]:
    """Return the attributes of an object, and what is in those that are lists or dictionaries."""
    elements = []
    for each in _attributes(found).values():
        is_container = type(each) in {list, dict} and len(each) <= MAX_LOOKED_INTO
        elements += (
            [*(each.values() if isinstance(each, dict) else each)] if is_container else [each]
        )
    return elements


def _holds_tensors(holder: Any) -> bool:
    """Return whether an object has tensors in it, not too deep."""
    seen: set[int] = set()
    level = [holder]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level if _is_of_library(each) for inner in _elements(each)]
        level = [each for each in level if id(each) not in seen]
        if any(isinstance(each, torch.Tensor) for each in level):
            return True
        seen.update(id(each) for each in level)
    return False


def _put_holder(
    found: Any, kept: dict[str, Any], filled: list[tuple[Any, Any]], *, had_tensors: bool
) -> None:
    """Put back what is in an object of a library that holds tensors now, or did before."""
    if had_tensors or _holds_tensors(found):
        for container, elements in filled:
            _refill(type(container), container, elements)
        _refill(dict, _attributes(found), kept)


def _kept_in_slots(found: Any, undo: list[Callable[[], Any]]) -> list[Any]:
    own = [each for each in type(found).__mro__ if _is_own(each) and "__slots__" in vars(each)]
    members = (each for kind in own for each in vars(kind).values())
    slots = [each for each in members if isinstance(each, MemberDescriptorType)]
    inside: list[Any] = []
    for slot in slots:
        kept: list[Any] = []
        with suppress(AttributeError):  # it is empty
            kept.append(slot.__get__(found))
        undo.append(partial(_put_slot, slot, found, kept))
        inside += kept
    return inside


def _put_slot(slot: Any, found: Any, kept: list[Any]) -> None:
    with suppress(AttributeError):
        slot.__set__(found, *kept) if kept else slot.__delete__(found)


def _refill(base: Any, container: Any, kept: dict[Any, Any] | list[Any]) -> None:
    base.clear(container)
    if isinstance(kept, dict):
        for key, value in kept.items():
            base.__setitem__(container, key, value)
    else:
        (base.update if base is set else base.extend)(container, kept)


def _put_variables(scope: dict[str, Any], kept: dict[str, Any], missing: set[str]) -> None:
    scope.update(kept)
    for name in missing & scope.keys():
        if not isinstance(scope[name], ModuleType):  # which has been imported, once and for all
            del scope[name]


def _put_attributes(owner: type, kept: dict[str, Any]) -> None:
    for name, value in kept.items():
        if vars(owner).get(name) is not value:
            type.__setattr__(owner, name, value)
    for name in [name for name in vars(owner) if name not in kept and not name.startswith("__")]:
        type.__delattr__(owner, name)


def _names(code: CodeType) -> set[str]:
    """Return the variables of its module that code names."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    named = (each for each in dis.get_instructions(code) if each.opname in NAMING)
    return {each.argval for each in named}.union(*inner)


def _is_own(thing: Any) -> bool:
    module = str(thing.__module__ or "")
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] not in LIBRARIES and "site-packages" not in file
