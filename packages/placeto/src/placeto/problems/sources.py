"""From what a user names to the graph of a training step."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from placeto.errors import InputError, reading
from placeto.problems.factories import defaults_of, find_factory, made_step
from placeto.problems.options import Rule
from placeto_graphs import (
    DEFAULT_RULES,
    GraphError,
    OpGraph,
    PlacementProblem,
    colocate_by_id,
    load_graph,
    load_pipedream_profile,
    load_problem,
    rules_of_names,
)

Target = Literal["gpu", "cpu"]  # whose kernels what is captured runs
PROFILED_KIND = "v100"  # what PipeDream's published profiles were measured on
DEFAULT_KIND = "k80"
JSON_SUFFIXES = (".json", ".json.gz")
MEMBER = re.compile(r"([a-z0-9-]+):([0-9]+)")
FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
LIBRARY = re.compile(r"(diffusers|timm|torchvision|transformers):(.+)", re.DOTALL)
# Files that are captured, so that they have sizes of their own.
PROGRAM_SUFFIXES = (".pt2", ".onnx")
WHAT_SOURCES_ARE = (
    "a model (inception-v3), a member of a family (nmt:7), a model of a library "
    "(transformers:gpt2, timm:resnet50), a problem file, a PipeDream profile, an ONNX file, "
    "an exported program (.pt2), or package.module:factory"
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
    sizes: Mapping[str, Any] | None = None,
    family_seed: int = 0,
    micro_batches: int = 1,
    target: Target = "gpu",
) -> Source:
    """Return what a user named.

    Parameters
    ----------
    text
        The name of a registered model; ``FAMILY:NUMBER``; ``LIBRARY:NAME``; the path of a problem
        file, a graph file, a PipeDream profile, an ONNX file or an exported program; or
        ``package.module:factory``.
    sizes
        Of the model, by name; of a model of a library and of a factory any values that JSON has.
    family_seed
        Of the family.
    micro_batches
        In how many micro-batches a step runs. What is captured is captured with their size.
    target
        The device whose kernels what is captured runs, ``"gpu"`` or ``"cpu"``.

    Raises
    ------
    InputError
        When it is nothing of that, cannot be read, or its batch cannot be divided.
    """
    source = _source_of(text, dict(sizes or {}), family_seed, micro_batches, target)
    if micro_batches == 1:
        return source
    name = f"{source.name} in {micro_batches} micro-batches"
    return replace(source, name=name, micro_batches=micro_batches)


def _source_of(
    text: str, given: dict[str, Any], family_seed: int, micro_batches: int, target: Target
) -> Source:
    if LIBRARY.fullmatch(text):
        return _of_library(text, given, micro_batches, target)
    if text.endswith(PROGRAM_SUFFIXES):
        return _of_program(Path(text), given, target)
    if Path(text).is_file() or _looks_like_a_file(text):
        if given:
            raise InputError(f"--set {next(iter(given))}: expected no sizes for the file {text}")
        return _of_file(Path(text))
    member = MEMBER.fullmatch(text)
    if member:
        sizes = _whole_numbers(given)
        return _of_family(member[1], int(member[2]), sizes, family_seed, micro_batches)
    if FACTORY.fullmatch(text):
        return _of_factory(text, given, micro_batches, target)
    return _of_model(text, _whole_numbers(given), micro_batches, target)


def parse_sizes(
    pairs: Sequence[tuple[str, str]],
    batch_size: int | None = None,
    sequence_length: int | None = None,
) -> dict[str, Any]:
    """Return what was set: a value is JSON, or else the text itself.

    Parameters
    ----------
    pairs
        Names and values, as given.
    batch_size, sequence_length
        Also these, if they are there.

    Examples
    --------
    >>> parse_sizes([("units", "8"), ("bias", "false"), ("act", "relu")], batch_size=4)
    {'batch_size': 4, 'units': 8, 'bias': False, 'act': 'relu'}
    """
    named = {"batch_size": batch_size, "sequence_length": sequence_length}
    given = {name: size for name, size in named.items() if size is not None}
    return given | {name: _value(text) for name, text in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity, which JSON does not have


def _whole_numbers(given: Mapping[str, Any]) -> dict[str, int]:
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"--set {name}: expected a whole number, got {value!r}")
    return dict(given)


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


def _of_program(path: Path, given: dict[str, Any], target: Target) -> Source:
    """Capture a model from a file that says what it computes; nothing in it is executed."""
    from placeto.problems.models import capture_step  # noqa: PLC0415
    from placeto_capture import program_step  # noqa: PLC0415
    from placeto_workloads import TrainingStep  # noqa: PLC0415

    with reading(path):
        step = TrainingStep(*program_step(path, trust=False, **_whole_numbers(given)))
        graph = capture_step(step, target=target)
    return Source(path.stem, graph)


def _gpu(problem: PlacementProblem) -> str:
    kinds = [device.kind for device in problem.cluster.devices if device.kind != "cpu"]
    return kinds[0] if kinds else DEFAULT_KIND


def _of_model(name: str, sizes: dict[str, int], micro_batches: int, target: Target) -> Source:
    from placeto.problems.models import load_model_graph  # noqa: PLC0415
    from placeto_workloads import MODELS  # noqa: PLC0415

    if name not in MODELS:
        raise InputError(
            f"{name}: expected {WHAT_SOURCES_ARE}; there is no such file, "
            f"and the models are {', '.join(MODELS)}"
        )
    whole = {**MODELS[name].sizes, **sizes}
    graph = load_model_graph(
        name, target, **{**sizes, **_part_of_batch(name, whole, micro_batches)}
    )
    return Source(name, graph, rules=MODELS[name].colocation_rules, is_part=True)


def _of_family(
    name: str, number: int, sizes: dict[str, int], seed: int, micro_batches: int
) -> Source:
    from placeto.problems.models import family_graph  # noqa: PLC0415
    from placeto_workloads import family  # noqa: PLC0415,

    chosen = family(name, seed=seed, sampler=None, **sizes)
    members = {member.name: member for member in (*chosen.training, *chosen.test)}
    wanted = f"{name}-{number:02}"
    if wanted not in members:
        raise InputError(f"{name}:{number}: expected a member from 0 to {len(members) - 1}")
    member = members[wanted]
    part = _part_of_batch(wanted, member.sizes, micro_batches)
    graph = family_graph(replace(member, sizes={**member.sizes, **part}))
    return Source(
        wanted,
        graph,
        rules=chosen.colocation_rules,
        num_groups=chosen.num_groups,
        is_part=True,
    )


def _of_library(text: str, values: dict[str, Any], micro_batches: int, target: Target) -> Source:
    """Capture a model that another library defines."""
    from placeto.problems.models import capture_step  # noqa: PLC0415
    from placeto_workloads import LIBRARIES, library_step  # noqa: PLC0415

    usual = defaults_of(LIBRARIES[text.partition(":")[0]])
    part = _part_of_batch(text, {**usual, **values}, micro_batches)
    step = library_step(text, **{**values, **part})
    name = Path(text.partition(":")[2]).name.removesuffix(".json")
    return Source(name, capture_step(step, target=target), is_part=True)


def _of_factory(text: str, values: dict[str, Any], micro_batches: int, target: Target) -> Source:
    """Capture the user's own model, whose code the user named to be run."""
    from placeto.problems.models import capture_step  # noqa: PLC0415

    factory = find_factory(text)
    part = _part_of_batch(text, {**defaults_of(factory), **values}, micro_batches)
    graph = capture_step(made_step(text, factory, {**values, **part}), target=target)
    return Source(text.rpartition(":")[2], graph, is_part=True)


def _part_of_batch(text: str, sizes: Mapping[str, Any], micro_batches: int) -> dict[str, int]:
    """Return the size of a micro-batch, as a size to capture with; none if there is only one."""
    if micro_batches == 1:
        return {}
    batch_size = sizes.get("batch_size")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool):
        raise InputError(
            f"--micro-batches: expected --batch-size beside it, as {text} says no batch_size"
        )
    if batch_size % micro_batches:
        raise InputError(
            f"--micro-batches: expected a number that divides the batch size {batch_size} of "
            f"{text}, got {micro_batches}"
        )
    return {"batch_size": batch_size // micro_batches}
