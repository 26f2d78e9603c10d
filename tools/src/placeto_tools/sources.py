"""From what a user names to the graph of a training step."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

from placeto_graphs import DEFAULT_RULES
from placeto_graphs import GraphError
from placeto_graphs import OpGraph
from placeto_graphs import PlacementProblem
from placeto_graphs import colocate_by_id
from placeto_graphs import load_graph
from placeto_graphs import load_pipedream_profile
from placeto_graphs import load_problem
from placeto_graphs import rules_of_names
from placeto_tools.errors import InputError
from placeto_tools.errors import reading
from placeto_tools.grouping_options import Rule

PROFILED_KIND = "v100"  # what PipeDream's published profiles were measured on
DEFAULT_KIND = "k80"
JSON_SUFFIXES = (".json", ".json.gz")
MEMBER = re.compile(r"([a-z0-9-]+):([0-9]+)")
FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
WHAT_SOURCES_ARE = (
    "a model (inception-v3), a member of a family (nmt:7), a problem file, a PipeDream profile, "
    "or package.module:factory"
)


@dataclass(frozen=True, eq=False)
class Source:
    """A graph, and what suits it.

    Attributes
    ----------
    name : text
        What it is called in tables and file names.
    graph : `OpGraph`
        One training step, or one micro-batch of it.
    problem : `PlacementProblem` or None
        The problem of which the graph was read, if it was one.
    rules : rules of co-location
        Those that suit the graph.
    num_groups : int or None
        How many groups suit the graph.
    kind : text
        The kind of GPU that its times are known of.
    micro_batches : int
        In how many micro-batches a step runs.
    is_part : bool
        Whether the graph is that of one micro-batch, captured with its size.
    """

    name: str
    graph: OpGraph
    problem: PlacementProblem | None = None
    rules: tuple[Rule, ...] = DEFAULT_RULES
    num_groups: int | None = None
    kind: str = DEFAULT_KIND
    micro_batches: int = 1
    is_part: bool = False


def load_source(
    text: str,
    sizes: Mapping[str, int] | None = None,
    family_seed: int = 0,
    micro_batches: int = 1,
) -> Source:
    """Return what a user named.

    Parameters
    ----------
    text
        The name of a registered model; ``FAMILY:NUMBER``; the path of a problem file, a graph file
        or a PipeDream profile; or ``package.module:factory``.
    sizes
        Of the model, by name.
    family_seed
        Of the family.
    micro_batches
        In how many micro-batches a step runs. What is captured is captured with their size.

    Raises
    ------
    InputError
        When it is nothing of that, cannot be read, or its batch cannot be divided.
    """
    source = _source_of(text, dict(sizes or {}), family_seed, micro_batches)
    if micro_batches == 1:
        return source
    name = f"{source.name} in {micro_batches} micro-batches"
    return replace(source, name=name, micro_batches=micro_batches)


def _source_of(text: str, given: dict[str, int], family_seed: int, micro_batches: int) -> Source:
    if Path(text).is_file() or _looks_like_a_file(text):
        if given:
            raise InputError(f"--set {next(iter(given))}: expected no sizes for the file {text}")
        return _of_file(Path(text))
    member = MEMBER.fullmatch(text)
    if member:
        return _of_family(member[1], int(member[2]), given, family_seed, micro_batches)
    if FACTORY.fullmatch(text):
        return _of_factory(text, given, micro_batches)
    return _of_model(text, given, micro_batches)


def parse_sizes(pairs: Sequence[tuple[str, str]], batch_size: int | None) -> dict[str, int]:
    """Return sizes as numbers.

    Parameters
    ----------
    pairs
        Names and values, as given.
    batch_size
        Also that, if there is one.
    """
    sizes = {} if batch_size is None else {"batch_size": batch_size}
    for name, value in pairs:
        try:
            sizes[name] = int(value)
        except ValueError:
            raise InputError(f"--set {name}: expected a whole number, got {value!r}") from None
    return sizes


def _looks_like_a_file(text: str) -> bool:
    return text.endswith((*JSON_SUFFIXES, ".txt")) or os.sep in text


def _of_file(path: Path) -> Source:
    name = path.name
    with reading(path):
        if not name.endswith(JSON_SUFFIXES):
            graph = load_pipedream_profile(path)
            return Source(path.stem, graph, rules=(colocate_by_id,), kind=PROFILED_KIND)
        stem = name.removesuffix(".gz").removesuffix(".json")
        try:
            problem = load_problem(path)
        except GraphError as error:
            try:
                return Source(stem, load_graph(path))
            except GraphError:
                raise error from None
    return Source(
        stem,
        problem.graph,
        problem,
        rules=DEFAULT_RULES if problem.rules is None else rules_of_names(problem.rules),
        num_groups=problem.num_groups,
        kind=_gpu(problem),
    )


def _gpu(problem: PlacementProblem) -> str:
    kinds = [device.kind for device in problem.cluster.devices if device.kind != "cpu"]
    return kinds[0] if kinds else DEFAULT_KIND


def _of_model(name: str, sizes: dict[str, int], micro_batches: int) -> Source:
    from placeto_workloads import MODELS  # noqa: PLC0415 (torch takes seconds to import)
    from placeto_workloads import load  # noqa: PLC0415

    if name not in MODELS:
        raise InputError(
            f"{name}: expected {WHAT_SOURCES_ARE}; there is no such file, "
            f"and the models are {', '.join(MODELS)}"
        )
    whole = {**MODELS[name].sizes, **sizes}
    graph = load(name, **{**sizes, **_part_of_batch(name, whole, micro_batches)})
    return Source(name, graph, rules=MODELS[name].colocation_rules, is_part=True)


def _of_family(
    name: str, number: int, sizes: dict[str, int], seed: int, micro_batches: int
) -> Source:
    from placeto_workloads import family  # noqa: PLC0415 (torch takes seconds to import)

    chosen = family(name, seed=seed, sampler=None, **sizes)
    members = {member.name: member for member in (*chosen.training, *chosen.test)}
    wanted = f"{name}-{number:02}"
    if wanted not in members:
        raise InputError(f"{name}:{number}: expected a member from 0 to {len(members) - 1}")
    member = members[wanted]
    part = _part_of_batch(wanted, member.sizes, micro_batches)
    graph = replace(member, sizes={**member.sizes, **part}).graph()
    return Source(
        wanted,
        graph,
        rules=chosen.colocation_rules,
        num_groups=chosen.num_groups,
        is_part=True,
    )


def _of_factory(text: str, sizes: dict[str, int], micro_batches: int) -> Source:
    """Capture the user's own model, whose code the user named to be run."""
    from placeto_workloads import TrainingStep  # noqa: PLC0415 (torch takes seconds to import)
    from placeto_workloads import capture  # noqa: PLC0415

    factory = _factory(text)
    part = _part_of_batch(text, {**_defaults(factory), **sizes}, micro_batches)
    try:
        made = factory(**{**sizes, **part})
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{text}: {type(error).__name__}: {error}") from error
    if isinstance(made, TrainingStep):
        made = (made.model, made.example_inputs, made.loss_fn)
    if not (isinstance(made, tuple) and len(made) in {2, 3}):
        raise InputError(
            f"{text}: expected a model and example inputs, or these and a loss function, "
            f"got {type(made).__name__}"
        )
    model, example_inputs, *loss_fn = made
    graph = capture(model, example_inputs, loss_fn=loss_fn[0] if loss_fn else None)
    return Source(text.rpartition(":")[2], graph, is_part=True)


def _part_of_batch(text: str, sizes: Mapping[str, Any], micro_batches: int) -> dict[str, int]:
    """Return the size of a micro-batch, as a size to capture with; none if there is only one."""
    if micro_batches == 1:
        return {}
    batch_size = sizes.get("batch_size")
    if not isinstance(batch_size, int):
        raise InputError(
            f"--micro-batches: expected --batch-size beside it, as {text} says no batch_size"
        )
    if batch_size % micro_batches:
        raise InputError(
            f"--micro-batches: expected a number that divides the batch size {batch_size} of "
            f"{text}, got {micro_batches}"
        )
    return {"batch_size": batch_size // micro_batches}


def _defaults(factory: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # of what is written in C
        return {}
    return {name: parameter.default for name, parameter in parameters.items()}


def _factory(text: str) -> Callable[..., Any]:
    module_name, _, attribute = text.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:  # a console script has its own folder
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise InputError(
            f"{text}: expected a module that can be imported, got {type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{text}: expected {module_name} to have {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{text}: expected something that can be called, got {found!r}")
    function: Callable[..., Any] = found
    return function
