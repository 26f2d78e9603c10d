"""From the name of a source to a model or to the graph of a training step.

A source is a file of a graph, or a model (`source_model`): that one has a graph, and a step that
runs.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

import placeto_workloads
from placeto.errors import InputError, check_once
from placeto.problems.models import (
    cached_step,
    capture_step,
    defaults_of,
    family_graph,
    find_factory,
    load_model_graph,
    make_step,
)
from placeto.problems.options import ANY, CPU, DECODE, TRAINING, Rule, SourceOptions, Target
from placeto_capture import CaptureError, fused
from placeto_graphs import (
    DEFAULT_RULES,
    OpGraph,
    PlacementProblem,
    colocate_by_id,
    load_dnn_partitioning,
    load_graph,
    load_pipedream_profile,
    load_problem,
    rules_of_names,
)
from placeto_graphs.errors import not_among
from placeto_graphs.files.storage import read_bytes
from placeto_workloads import MODELS, training_step

if TYPE_CHECKING:
    from placeto_workloads import TrainingStep

PROFILED_KIND = "v100"  # what PipeDream's published profiles were measured on
DEFAULT_KIND = "k80"
# The names of evaluators, which are those of objectives.
OF_A_STEP, OF_A_PIPELINE = "latency", "throughput"
GRAPH_FORMAT = "placeto-graph"
JSON_SUFFIXES = (".json", ".json.gz")
SUFFIXES_IN_FOLDERS = (*JSON_SUFFIXES, ".txt")  # of the graph files that a folder stands for
EXPORTED_SUFFIX, PYTHON_SUFFIX = ".pt2", ".py"
BEGINNING = re.compile(rb'\s*\{\s*"format"\s*:\s*"([\w-]*)"')  # of the files of this project
MEMBER = re.compile(r"([a-z0-9-]+):([0-9]+)")
FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
LIBRARY_NAMES = ("diffusers", "timm", "torchvision", "transformers")
LIBRARY = re.compile(f"({'|'.join(LIBRARY_NAMES)}):(.+)", re.DOTALL)
WEIGHTS = re.compile(r"(.+)\.(gguf|safetensors(\.index\.json)?)", re.DOTALL)
PROGRAM = re.compile(r".+\.(pt2|onnx)", re.DOTALL)
WHAT_CAN_RUN = (
    "a model (inception-v3), a graph of a family (nmt:7), a model of a library "
    "(transformers:gpt2, timm:resnet50), a GGUF or safetensors file, an ONNX file, an exported "
    "program (.pt2), or package.module:factory"
)


SIZES = ("flops", "bytes_accessed", "workspace_bytes", "tensor_bytes")  # which batches change


@dataclass(frozen=True, eq=False)
class Batches:
    """Graphs of the step of a model with parts of its batch, of which two are captured.

    If FLOPs and bytes of each op are a constant and a multiple of the samples, two graphs tell all
    others. Others are captured, and so is a step of one sample, which may have other ops.

    Attributes
    ----------
    size
        Function that returns the number of samples of a step.
    capture
        Function that returns the graph of a step with a number of samples.
    captured
        Graphs by their numbers of samples.
    """

    size: Callable[[], int]
    capture: Callable[[int], OpGraph]
    captured: dict[int, OpGraph] = field(default_factory=dict)

    def graph(self, samples: int) -> OpGraph:
        """Return the graph of a step with some samples."""
        several = sorted(count for count in self.captured if count > 1)
        if samples in self.captured:
            return self.captured[samples]
        if samples > 1 and len(several) > 1:
            few, many = several[0], several[-1]
            low, high = self.captured[few], self.captured[many]
            if _are_linear(low, high, few / (many - few)):
                return _between(low, high, (samples - few) / (many - few))
        return self.captured.setdefault(samples, self.capture(samples))

    def divided(self, parts: Sequence[int], name: str) -> list[int]:
        """Return the samples of each part of the batch, which are in relation to the others."""
        batch = self.size()
        if batch % sum(parts):
            number = len(parts) if len(set(parts)) == 1 else "+".join(map(str, parts))
            raise InputError(
                f"--copies: expected a number that divides the batch size {batch} of {name}, or "
                f"samples whose sum does, got {number}"
            )
        return [part * batch // sum(parts) for part in parts]


@dataclass(frozen=True, eq=False)
class Source:
    """A graph, and what suits it."""

    name: str  # in tables and file names
    graph: OpGraph  # of one training step, or of one micro-batch of it
    problem: PlacementProblem | None = None  # of which the graph was read, if it was one
    rules: tuple[Rule, ...] = DEFAULT_RULES  # of co-location
    num_groups: int | None = None
    kind: str = DEFAULT_KIND  # of GPU, of which its times are known
    micro_batches: int = 1  # number of them in a step
    copies: tuple["Source", ...] = ()  # of the parts of the batch, one for each copy of the model
    part: tuple[int, int] = (1, 0)  # samples of the batch that count, and others, of ops of a file
    is_micro_batch: bool = False  # whether the graph was captured with that part of the batch
    batches: Batches | None = None  # of the training of a model, which copies of it divide
    evaluator: str = OF_A_STEP  # name of the objective that its publishers have for it


def _are_linear(low: OpGraph, high: OpGraph, fraction: float) -> bool:
    """Return True if two graphs have the same ops, and no sizes that grow faster than the samples.

    Such sizes, as of the product of all pairs of samples, would be negative without samples, which
    are so far below those of the first graph, as a fraction of what is between both.
    """
    are_same = all(
        np.array_equal(getattr(low, name), getattr(high, name))
        for name in ("op_names", "op_types", "dtype", "edges", "parameter_bytes")
    )
    return are_same and all(
        (getattr(low, name) * (1 + fraction) - getattr(high, name) * fraction >= -1).all()
        for name in SIZES
    )


def _between(low: OpGraph, high: OpGraph, fraction: float) -> OpGraph:
    """Return the graph with sizes between those of two graphs of the same ops, or beyond them."""
    sizes = {}
    for name in SIZES:
        low_size, high_size = getattr(low, name), getattr(high, name)
        size = np.maximum(np.rint(low_size + (high_size - low_size) * fraction), 0)
        sizes[name] = size.astype(low_size.dtype)
    return replace(low, **sizes)


@dataclass(frozen=True, eq=False)
class SourceModel:
    """A model that a user named, and what suits it; nothing of it is made yet."""

    name: str  # in tables and file names
    make: "Callable[[str], TrainingStep]"  # on a device; on "meta" one without values
    rules: tuple[Rule, ...] = DEFAULT_RULES
    num_groups: int | None = None
    is_micro_batch: bool = True  # as of `Source`
    cached: Callable[[Target, Any], OpGraph] | None = None  # its graph, where such are kept
    default_sizes: Callable[[], Mapping[str, Any]] = dict  # besides those that the user named
    library_name: str = ""  # of a model of a library
    autocast: Any = None  # a dtype of torch
    tokens: int = 0  # that a step makes
    fuses: bool = False  # whether kernels are fused: a step of inference that is not eager

    def source(self, target: Target) -> Source:
        """Return the graph of the model for the kernels of a target, and what suits it."""
        try:
            if self.cached:
                graph = self.cached(target, self.autocast)
            else:
                graph = capture_step(self.make("meta"), target, autocast=self.autocast)
        except CaptureError as error:  # mostly one of the model's own
            if not self.library_name:
                raise
            from placeto_workloads.libraries.loading import ADVICE  # noqa: PLC0415 (torch)

            raise CaptureError(f"{self.library_name}: {error}; {ADVICE}") from error
        graph = replace(graph, tokens=self.tokens) if self.tokens else graph
        return Source(
            self.name,
            fused(graph) if self.fuses else graph,
            rules=self.rules,
            num_groups=self.num_groups,
            is_micro_batch=self.is_micro_batch,
        )


def load_source(
    text: str,
    choice: SourceOptions | None = None,
    micro_batches: int = 1,
    target: Target = "gpu",
    samples: Sequence[int] = (1,),
) -> Source:
    """Return the graph of a source, with its defaults.

    A model is captured with a micro-batch. If copies of it share the batch, each has its source;
    the samples are those of each, in relation to those of the others.
    """
    choice = choice or SourceOptions()
    if len(samples) > 1:
        return _source_of_copies(text, choice, micro_batches, target, samples)
    if is_graph_file(text):
        of_models = {"mask-fraction": choice.mask_fraction, "autocast": choice.autocast}
        for option, value in of_models.items():
            if value is not None:
                raise InputError(f"--{option}: expected none for the file {text}")
        _check_choice(text, choice, has_inference=False)
        source = _read_graph_file(Path(text), choice.sizes)
    else:
        model = source_model(text, choice, micro_batches)
        source = model.source(target)
        if model.is_micro_batch and choice.mode == TRAINING:
            source = replace(source, batches=_batches(text, choice, target))
    if micro_batches == 1:
        return source
    divided = source.graph.num_micro_batches
    if divided > 1:
        raise InputError(
            f"--micro-batches: expected none for {text}, whose step is in {divided} already, got "
            f"{micro_batches}; build its model anew with another number"
        )
    name = f"{source.name} in {micro_batches} micro-batches"
    return replace(source, name=name, micro_batches=micro_batches)


def _source_of_copies(
    text: str, choice: SourceOptions, micro_batches: int, target: Target, samples: Sequence[int]
) -> Source:
    """Return the source of copies: a model with parts of the batch, or parts of a file."""
    if is_graph_file(text) or not source_model(text, choice).is_micro_batch:
        source, batch = load_source(text, choice, micro_batches, target), sum(samples)
        return in_copies(lambda count: replace(source, part=(count, batch - count)), samples)
    batches = _batches(text, choice, target)
    counts = batches.divided(samples, text)
    first = load_source(text, with_batch_size(choice, counts[0]), micro_batches, target)
    batches.captured[counts[0] // micro_batches] = first.graph

    def of_copy(count: int) -> Source:
        source_model(text, with_batch_size(choice, count), micro_batches)  # refuses odd numbers
        return replace(first, graph=batches.graph(count // micro_batches))

    return in_copies(of_copy, counts)


def in_copies(source_of: Callable[[int], Source], samples: Sequence[int]) -> Source:
    """Return the source of copies, each with a source for its samples."""
    of_samples = {count: source_of(count) for count in dict.fromkeys(samples)}
    copies = tuple(of_samples[count] for count in samples)
    return replace(copies[0], name=f"{copies[0].name} in {len(copies)} copies", copies=copies)


def _batches(text: str, choice: SourceOptions, target: Target) -> Batches:
    def captured(samples: int) -> OpGraph:
        return source_model(text, with_batch_size(choice, samples)).source(target).graph

    return Batches(partial(batch_size_of, text, choice), captured)


def batch_size_of(text: str, choice: SourceOptions) -> int:
    """Return the batch size of a model, which copies of it divide."""
    return _checked_batch_size(text, choice.sizes, source_model(text, choice).default_sizes)


def with_batch_size(choice: SourceOptions, batch_size: int) -> SourceOptions:
    """Return the options of a model with another batch size."""
    return replace(choice, sizes={**choice.sizes, "batch_size": batch_size})


def most_micro_batches(text: str, choice: SourceOptions, limit: int) -> int:
    """Return the largest number of micro-batches, up to a limit, that divide the step of a source.

    The ops of a file are divided by any number.
    """
    for count in range(limit, 1, -1):
        with suppress(InputError):
            if not is_graph_file(text):
                source_model(text, choice, count)
            return count
    return 1


def source_model(text: str, choice: SourceOptions, micro_batches: int = 1) -> SourceModel:
    """Return the model of a source, with a micro-batch as its batch."""
    if _is_of_weights(text):
        text = f"transformers:{text}"
    kind = next(kind for kind in _KINDS if kind.pattern.fullmatch(text))
    _check_choice(
        text,
        choice,
        micro_batches,
        has_inference=kind.find_model is _library_model,
        has_seed=kind.find_model is _family_model,
    )
    for name in kind.no_sizes:
        if name in choice.sizes:
            raise InputError(f"--set {name}: expected a size of {text}")
    model = kind.find_model(text, choice, micro_batches)
    if choice.mask_fraction is not None:
        make, fraction = model.make, choice.mask_fraction
        model = replace(
            model, make=lambda device: make(device)._replace(mask_fraction=fraction), cached=None
        )
    if choice.autocast is not None:
        import torch  # noqa: PLC0415 (it takes seconds)

        model = replace(model, autocast=getattr(torch, choice.autocast, choice.autocast))
    return model


def _check_choice(
    text: str,
    choice: SourceOptions,
    micro_batches: int = 1,
    *,
    has_inference: bool,
    has_seed: bool = False,
) -> None:
    """Refuse a step of inference that a source does not have, and options that it ignores."""
    if choice.family_seed and not has_seed:
        raise InputError(f"--family-seed: needs a graph of a family such as nmt:7, got {text}")
    if choice.trust and not text.endswith(EXPORTED_SUFFIX):
        raise InputError(f"--trust: needs an exported program ({EXPORTED_SUFFIX}), got {text}")
    if choice.mode == TRAINING:
        of_inference = {
            "context": choice.context,
            "weight-bits": choice.weight_bits,
            "cache-bits": choice.cache_bits,
            "cache-device": choice.cache_device != ANY or None,
            "eager": choice.eager or None,
        }
        for option, value in of_inference.items():
            if value is not None:
                raise InputError(f"--{option}: needs --mode prefill or --mode decode")
    elif not has_inference:
        raise InputError(
            f"--mode: expected {TRAINING} for {text}; name a GGUF or safetensors file, or after "
            "transformers: a model_type (llama) or the path of a config.json: nothing is downloaded"
        )
    elif micro_batches != 1:
        raise InputError(f"--micro-batches: expected 1 with --mode {choice.mode}")


def is_graph_file(text: str) -> bool:
    """Return True if a text names a file of a graph, and not a file of a model."""
    if PROGRAM.fullmatch(text) or LIBRARY.fullmatch(text) or _is_of_weights(text):
        return False
    if text.endswith(PYTHON_SUFFIX):
        return False
    return text.endswith((*JSON_SUFFIXES, ".txt")) or os.sep in text or Path(text).is_file()


def files_of_sources(sources: Sequence[str]) -> list[tuple[str, bool]]:
    """Return sources, each file once, and True for one that is named itself, not its folder."""
    files: dict[str, tuple[str, bool]] = {}  # by their real paths
    for text in sources:
        is_named = not Path(text).is_dir()
        if is_named:
            paths = [text]
        else:
            inside = sorted(str(path) for path in Path(text).iterdir())
            paths = [path for path in inside if path.endswith(SUFFIXES_IN_FOLDERS)]
        for path in paths:
            first_path, was_named = files.get(os.path.realpath(path), (path, False))
            files[os.path.realpath(path)] = first_path, was_named or is_named
    return list(files.values())


def _is_of_weights(text: str) -> bool:
    """Return whether a user named a file of weights, or a folder, but no library before it."""
    is_folder = os.sep in text and Path(text).is_dir()
    return not LIBRARY.fullmatch(text) and (is_folder or WEIGHTS.fullmatch(text) is not None)


def _registered_model(name: str, choice: SourceOptions, micro_batches: int) -> SourceModel:
    sizes = _whole_numbers(choice.sizes)
    if name not in MODELS:
        raise _no_source(name, MODELS)

    def default_sizes() -> Mapping[str, Any]:
        return MODELS[name].sizes

    micro_batch_sizes = _sizes_of_micro_batch(name, sizes, default_sizes, micro_batches)
    return SourceModel(
        name,
        lambda device: training_step(name, device=device, **micro_batch_sizes),
        default_sizes=default_sizes,
        rules=MODELS[name].colocation_rules,
        cached=lambda target, autocast: load_model_graph(
            name, target, autocast=autocast, **micro_batch_sizes
        ),
    )


def _no_source(name: str, models: Collection[str]) -> InputError:
    """Return the error of a name that is neither a file nor a model."""
    path = Path(name)
    if path.suffix == PYTHON_SUFFIX:
        return InputError(
            f"{name}: expected a function, got a file; name its function as {path.stem}:FUNCTION"
        )
    if path.is_dir():
        return InputError(
            f"{name}: expected a file or a model, got a folder; write {path}{os.sep} if it has the "
            "weights of a model"
        )
    return InputError(
        f"{name}: no such file, and no such model: {not_among(name, models)}; `placeto build "
        "--help` lists all kinds of sources"
    )


def _family_model(text: str, choice: SourceOptions, micro_batches: int) -> SourceModel:
    from placeto_workloads import family  # noqa: PLC0415 (torch takes seconds)

    sizes = _whole_numbers(choice.sizes)
    name, _, index = text.partition(":")
    graph_family = family(name, seed=choice.family_seed, sampler=None, **sizes)
    graphs = {graph.name: graph for graph in (*graph_family.training, *graph_family.test)}
    member_name = f"{name}-{int(index):02}"
    if member_name not in graphs:
        raise InputError(f"{text}: expected a graph from 0 to {len(graphs) - 1}")
    whole = graphs[member_name]
    member = replace(
        whole, sizes=_sizes_of_micro_batch(member_name, whole.sizes, dict, micro_batches)
    )
    return SourceModel(
        member_name,
        lambda device: member.training_step(device=device),
        default_sizes=lambda: whole.sizes,
        rules=graph_family.colocation_rules,
        num_groups=graph_family.num_groups,
        cached=lambda target, autocast: family_graph(member, target, autocast=autocast),
    )


def _library_model(text: str, choice: SourceOptions, micro_batches: int) -> SourceModel:
    library, _, model = text.partition(":")
    file = WEIGHTS.fullmatch(Path(model).name)
    name = file[1] if file else Path(model).name.removesuffix(".json")
    maker, tokens = "library_step", 0

    def default_sizes() -> Mapping[str, Any]:
        return defaults_of(placeto_workloads.LIBRARIES[library])

    if choice.mode == TRAINING:
        values = _sizes_of_micro_batch(text, choice.sizes, default_sizes, micro_batches)
    else:
        options = {
            "mode": choice.mode,
            "context": choice.context,
            "weight_bits": choice.weight_bits,
            "cache_bits": choice.cache_bits,
            "cache_on_cpu": choice.cache_device == CPU,
        }
        check_once([*options, *choice.sizes])
        values = {**options, **choice.sizes}
        maker, name = "inference_step", f"{name}-{choice.mode}"
        tokens = values.get("batch_size", 1) if choice.mode == DECODE else 0

    def make(device: str) -> "TrainingStep":
        step: TrainingStep = getattr(placeto_workloads, maker)(text, device=device, **values)
        return step

    def cached(target: Target, autocast: Any) -> OpGraph:
        # Of all, as models of transformers have backbones of timm.
        versions = [
            distribution.version
            for library_name in LIBRARY_NAMES
            for distribution in distributions(name=library_name)
        ]
        return cached_step(
            f"{library}-{name}",
            {**values, "source": (text, *versions)},
            lambda: make("meta"),
            target=target,
            autocast=autocast,
        )

    is_file = os.path.exists(model)  # whose content may change
    return SourceModel(
        name,
        make,
        default_sizes=default_sizes,
        library_name=text,
        tokens=tokens,
        cached=None if is_file else cached,
        fuses=choice.mode != TRAINING and not choice.eager,
    )


def _program_model(text: str, choice: SourceOptions, _micro_batches: int) -> SourceModel:
    from placeto_capture import program_step  # noqa: PLC0415 (torch takes seconds)
    from placeto_workloads import TrainingStep  # noqa: PLC0415

    sizes = _whole_numbers(choice.sizes)
    if text.endswith(EXPORTED_SUFFIX) and Path(text).exists() and not choice.trust:
        raise InputError(f"{text}: can run code that it contains; if you trust it, add --trust")

    def make(_device: str) -> TrainingStep:
        return TrainingStep(*program_step(text, trust=choice.trust, **sizes))

    return SourceModel(Path(text).stem, make, is_micro_batch=False)


def _factory_model(text: str, choice: SourceOptions, micro_batches: int) -> SourceModel:
    factory = find_factory(text)
    default_sizes = partial(defaults_of, factory)
    values = _sizes_of_micro_batch(text, choice.sizes, default_sizes, micro_batches)
    return SourceModel(
        text.rpartition(":")[2],
        lambda _device: make_step(text, factory, values),
        default_sizes=default_sizes,
    )


class _Kind(NamedTuple):
    """Kind of sources with a model."""

    pattern: re.Pattern[str]  # of their names
    find_model: Callable[[str, SourceOptions, int], SourceModel]
    no_sizes: tuple[str, ...]  # parameters of what makes a model that are no sizes of it


_KINDS = (
    _Kind(LIBRARY, _library_model, ("device", "name", "source")),
    _Kind(PROGRAM, _program_model, ("trust",)),
    _Kind(MEMBER, _family_model, ("name", "sampler", "seed")),
    _Kind(FACTORY, _factory_model, ()),
    _Kind(
        re.compile(".*", re.DOTALL),
        _registered_model,
        ("autocast", "device", "name", "seed", "target"),
    ),
)


def _read_graph_file(path: Path, sizes: Mapping[str, Any]) -> Source:
    evaluator, name = OF_A_STEP, path.name.removesuffix(".gz").removesuffix(".json")
    for size in sizes:
        raise InputError(
            f"{path}: expected no sizes (--set, --batch-size, --sequence-length) with a graph, "
            f"got {size}"
        )
    if not path.name.endswith(JSON_SUFFIXES):
        if path.is_file() and b" -- " not in read_bytes(path, start=True):
            raise InputError(
                f"{path}: expected a model, a problem or graph (.json, .json.gz), or a profile of "
                "PipeDream"
            )
        graph = load_pipedream_profile(path)
        return Source(path.stem, graph, rules=(colocate_by_id,), kind=PROFILED_KIND)
    head = _Head("unknown")  # what is no JSON object is left to the reader of problems
    beginning = BEGINNING.match(read_bytes(path, start=True))
    if beginning:
        head = _Head(beginning[1].decode())
    else:
        with suppress(msgspec.MsgspecError):
            head = msgspec.json.decode(read_bytes(path), type=_Head)
    if head.format == GRAPH_FORMAT:  # of a graph alone
        return Source(name, load_graph(path))
    if head.format is not None:
        problem = load_problem(path)
    elif head.maxFPGAs is not None:
        problem, evaluator = load_dnn_partitioning(path), OF_A_PIPELINE
    else:
        raise InputError(
            f"{path}: expected a problem file, a graph file or an input of dnn-partitioning, "
            "got other JSON"
        )
    kinds = [device.kind for device in problem.cluster.devices if not device.is_cpu]
    return Source(
        name,
        problem.graph,
        problem,
        rules=DEFAULT_RULES if problem.rules is None else rules_of_names(problem.rules),
        num_groups=problem.num_groups,
        kind=kinds[0] if kinds else DEFAULT_KIND,
        evaluator=evaluator,
    )


class _Head(msgspec.Struct):
    """The fields by which JSON files are told apart."""

    format: str | None = None
    maxFPGAs: Any = None  # noqa: N815 (of dnn-partitioning)


def _sizes_of_micro_batch(
    text: str,
    sizes: Mapping[str, Any],
    default_sizes: Callable[[], Mapping[str, Any]],
    micro_batches: int,
) -> dict[str, Any]:
    """Return sizes of a micro-batch: if a step has several, they share the batch."""
    if micro_batches == 1:
        return dict(sizes)
    batch_size = _checked_batch_size(text, sizes, default_sizes)
    if batch_size % micro_batches:
        raise InputError(
            f"--micro-batches: expected a number that divides the batch size "
            f"{batch_size} of {text}, got {micro_batches}"
        )
    return {**sizes, "batch_size": batch_size // micro_batches}


def _checked_batch_size(
    text: str, sizes: Mapping[str, Any], default_sizes: Callable[[], Mapping[str, Any]]
) -> int:
    """Return the batch size that is named, or else the default one, which PyTorch may tell."""
    named = sizes if "batch_size" in sizes else default_sizes()
    batch_size = named.get("batch_size")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool):
        raise InputError(
            f"--micro-batches, --copies: needs --batch-size, as {text} has no default batch_size"
        )
    return batch_size


def parse_sizes(
    sizes: Sequence[tuple[str, str]],
    batch_size: int | None = None,
    sequence_length: int | None = None,
) -> dict[str, Any]:
    """Return sizes of names and texts: a value is JSON, or else the text itself."""
    named = {"batch_size": batch_size, "sequence_length": sequence_length}
    values = {name: size for name, size in named.items() if size is not None}
    check_once([*values, *(name for name, _ in sizes)])
    return values | {name: _value(text) for name, text in sizes}


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity, which JSON does not have


def _whole_numbers(sizes: Mapping[str, Any]) -> dict[str, int]:
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"--set {name}: expected a whole number, got {value!r}")
    return dict(sizes)
