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
NAMING = {
    f"{action}_{kind}" for action in ("LOAD", "STORE", "DELETE") for kind in ("GLOBAL", "NAME")
}
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
    visited: dict[int, Any] = {}
    to_see = list(roots)
    while to_see:
        reached = to_see.pop()
        if id(reached) not in visited and not issubclass(type(reached), torch.Tensor | ModuleType):
            visited[id(reached)] = reached
            to_see += _inside(reached, undo)
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _inside(holder: Any, undo: list[Callable[[], Any]]) -> list[Any]:
    """Return what is in an object, which is not asked itself, and add what puts it back."""
    kind, inside = type(holder), []
    is_own_container = issubclass(kind, BASES) and _is_own(kind)
    if kind in CONTAINERS or is_own_container:
        base: Any = next(base for base in BASES if issubclass(kind, base))
        saved = dict(base.items(holder)) if issubclass(base, dict) else [*base.__iter__(holder)]
        undo.append(partial(_refill, base, holder, saved))
        if len(saved) <= MAX_LOOKED_INTO:
            inside = [*saved, *(saved.values() if isinstance(saved, dict) else ())]
        if is_own_container:
            inside += [kind, _attributes(holder)]
    elif kind is CellType:
        with suppress(ValueError):  # it is empty
            inside = [holder.cell_contents]
            undo.append(partial(setattr, holder, "cell_contents", *inside))
    elif kind is FunctionType:
        scope, names = holder.__globals__, _names(holder.__code__) if _is_own(holder) else set()
        saved = {name: scope[name] for name in names if name in scope}
        undo.append(partial(_put_variables, scope, saved, names - saved.keys()))
        inside = [
            holder.__closure__ or (),
            holder.__defaults__,
            holder.__kwdefaults__,
            *saved.values(),
        ]
    elif issubclass(kind, type) and _is_own(holder):
        saved = {name: value for name, value in vars(holder).items() if not name.startswith("__")}
        undo.append(partial(_put_attributes, holder, saved))
        inside = [*saved.values()]
    elif issubclass(kind, tuple):
        inside = [*tuple.__iter__(holder)]
    elif kind.__module__ in {"builtins", "functools"} and not issubclass(kind, type):  # methods
        undo += [holder.cache_clear] if hasattr(holder, "cache_clear") else []
        inside = [getattr(holder, name) for name in REFERENCES if hasattr(holder, name)]
    elif any(_is_own(base) or str(base.__module__).startswith(STATEFUL) for base in kind.__mro__):
        inside = [kind, _attributes(holder), *_slot_contents(holder, undo)]
    elif _is_of_library(holder):
        saved = dict(_attributes(holder))
        containers = [
            (value, value.copy()) for value in saved.values() if type(value) in {list, dict}
        ]
        undo.append(
            partial(_put_holder, holder, saved, containers, had_tensors=_holds_tensors(holder))
        )
        inside = [element for element in _elements(holder) if type(element) not in CONTAINERS]
    return inside


def _attributes(holder: Any) -> dict[str, Any]:
    """Return the dictionary of an object's attributes, empty where it has none."""
    try:
        attributes = object.__getattribute__(holder, "__dict__")
    except Exception:  # of a class that has one of its own
        return {}
    return attributes if type(attributes) is dict else {}


def _is_of_library(holder: Any) -> bool:
    library = str(type(holder).__module__).partition(".")[0]
    is_plain = library not in LIBRARIES or issubclass(type(holder), SimpleNamespace)
    return is_plain and not issubclass(type(holder), type)


def _elements(holder: Any) -> list[Any]:
    """Return the attributes of an object, and what is in those that are lists or dictionaries."""
    elements: list[Any] = []
    for value in _attributes(holder).values():
        if type(value) in {list, dict} and len(value) <= MAX_LOOKED_INTO:
            elements += value.values() if isinstance(value, dict) else value
        else:
            elements.append(value)
    return elements


def _holds_tensors(holder: Any) -> bool:
    """Return whether an object has tensors in it, not too deep."""
    visited: set[int] = set()
    level = [holder]
    for _ in range(MAX_DEPTH):
        level = [
            element for member in level if _is_of_library(member) for element in _elements(member)
        ]
        level = [member for member in level if id(member) not in visited]
        if any(isinstance(member, torch.Tensor) for member in level):
            return True
        visited.update(id(member) for member in level)
    return False


def _put_holder(
    holder: Any,
    saved: dict[str, Any],
    containers: list[tuple[Any, Any]],
    *,
    had_tensors: bool,
) -> None:
    """Put back what is in an object of a library that holds tensors now, or did before."""
    if had_tensors or _holds_tensors(holder):
        for container, elements in containers:
            _refill(type(container), container, elements)
        _refill(dict, _attributes(holder), saved)


def _slot_contents(holder: Any, undo: list[Callable[[], Any]]) -> list[Any]:
    kinds = [kind for kind in type(holder).__mro__ if _is_own(kind) and "__slots__" in vars(kind)]
    members = (member for kind in kinds for member in vars(kind).values())
    slots = [member for member in members if isinstance(member, MemberDescriptorType)]
    inside: list[Any] = []
    for slot in slots:
        contents: list[Any] = []
        with suppress(AttributeError):  # it is empty
            contents.append(slot.__get__(holder))
        undo.append(partial(_put_slot, slot, holder, contents))
        inside += contents
    return inside


def _put_slot(slot: Any, holder: Any, contents: list[Any]) -> None:
    with suppress(AttributeError):
        slot.__set__(holder, *contents) if contents else slot.__delete__(holder)


def _refill(base: Any, container: Any, elements: dict[Any, Any] | list[Any]) -> None:
    base.clear(container)
    if isinstance(elements, dict):
        for key, value in elements.items():
            base.__setitem__(container, key, value)
    else:
        (base.update if base is set else base.extend)(container, elements)


def _put_variables(scope: dict[str, Any], variables: dict[str, Any], missing: set[str]) -> None:
    scope.update(variables)
    for name in missing & scope.keys():
        if not isinstance(scope[name], ModuleType):  # which has been imported, once and for all
            del scope[name]


def _put_attributes(owner: type, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if vars(owner).get(name) is not value:
            type.__setattr__(owner, name, value)
    for name in [
        name for name in vars(owner) if name not in attributes and not name.startswith("__")
    ]:
        type.__delattr__(owner, name)


def _names(code: CodeType) -> set[str]:
    """Return the variables of its module that code names."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in NAMING:
            names.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _is_own(thing: Any) -> bool:
    module = str(thing.__module__ or "")
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] not in LIBRARIES and "site-packages" not in file
