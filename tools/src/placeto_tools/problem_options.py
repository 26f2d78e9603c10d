"""Options that describe a problem: the source, its sizes, the devices, the groups."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.place_problem import resolve_placement, sent_back_text
from placeto.problems.making import problem_of, read_source
from placeto.problems.options import (
    ANY,
    AUTO,
    CACHE_DEVICES,
    TRAINING,
    GroupingOptions,
    ProblemOptions,
    SourceOptions,
)
from placeto.problems.restrictions import Restrictions
from placeto.problems.sources import is_graph_file, parse_sizes
from placeto.progress import Progress
from placeto_graphs import (
    DEVICE_KINDS,
    NAMED_RULES,
    SCHEDULES,
    PlacementProblem,
    load_copies,
)
from placeto_tools.options import (
    KEY_VALUE,
    NearestChoice,
    Parsed,
    Positive,
    gathered,
    link_option,
    number_option,
)
from placeto_tools.screen import showing_progress

size_options = gathered(
    "sizes",
    parse_sizes,
    number_option(
        "--batch-size",
        help="Number of examples in a step; short for --set batch_size=N.  "
        "[default: that of the model]",
    ),
    number_option(
        "--sequence-length",
        help="Number of tokens in an example; short for --set sequence_length=N.  "
        "[default: that of the model]",
    ),
    click.option(
        "--set",
        "sizes",
        type=KEY_VALUE,
        multiple=True,
        help="Size of the model, such as steps=16 (`placeto models` lists them); of a model of a "
        "library, a value of its configuration; of a factory, an argument. Values are JSON or "
        "text. May be repeated.",
    ),
)
source_options = gathered(
    "choice",
    SourceOptions,
    size_options,
    number_option("--family-seed", minimum=0, default=0, help="Seed of the 32 graphs of a family."),
    click.option(
        "--trust", is_flag=True, help="Load a .pt2 file, which can run code that it contains."
    ),
    click.option(
        "--mask-fraction",
        type=Positive(1),
        help="Fraction of elements that a mask of unknown values selects; 1 is an upper bound.  "
        "[default: such a mask is an error]",
    ),
    click.option(
        "--mode",
        type=NearestChoice([TRAINING, "prefill", "decode"]),
        default=TRAINING,
        help="Step to capture. Models of transformers also have inference with a key-value cache: "
        "prefill, a prompt that fills it, and decode, one token with a full cache.",
    ),
    number_option(
        "--context",
        metavar="TOKENS",
        help="Number of tokens in the cache of prefill and decode.  [default: 2048, or the maximum "
        "of the configuration if that is less]",
    ),
    click.option(
        "--weight-bits",
        type=click.Choice([4, 8, 16]),
        help="Number of bits of each weight of embeddings, linear layers and experts in prefill "
        "and decode; with their scales, 4 and 8 take 4.5 and 8.5.  [default: that of the dtype]",
    ),
    click.option(
        "--cache-bits",
        type=click.Choice([4, 8, 16]),
        help="Number of bits of each number of the keys and values in prefill and decode; with "
        "their scales, 4 and 8 take 4.5 and 8.5.  [default: that of the dtype]",
    ),
    click.option(
        "--cache-device",
        type=NearestChoice(CACHE_DEVICES),
        default=ANY,
        help="Device of the keys and values in prefill and decode: any, that of the attention; "
        "cpu, host memory, where the attention is computed then.",
    ),
    click.option(
        "--eager",
        is_flag=True,
        help="Issue ops of prefill and decode one by one, as eager PyTorch does.  [default: fused "
        "kernels, as of llama.cpp, vLLM and torch.compile]",
    ),
    click.option(
        "--autocast",
        type=NearestChoice(["bfloat16", "float16"]),
        help="Precision of the forward pass and the loss, as in torch.autocast.  [default: that of "
        "the model]",
    ),
)


def _grouping(
    rules: tuple[str, ...],
    patterns: tuple[str, ...],
    num_groups: int | None,
    min_output_bytes: int | None,
    no_merging: bool,
) -> GroupingOptions:
    if no_merging and (num_groups or min_output_bytes):
        raise click.UsageError("--no-merging: excludes --groups and --min-output-bytes")
    return GroupingOptions(
        rules=rules,
        patterns=patterns,
        num_groups=num_groups,
        min_output_bytes=min_output_bytes,
        merging=not no_merging,
    )


cluster_option = click.option(
    "--cluster",
    metavar="SPEC|FILE",
    help="Devices: a text such as 2xk80 or 1xcpu+4xk80, or a TOML file.  [default: those of the "
    "model, else 2xk80]",
)
gpus_option = number_option(
    "--gpus", maximum=1024, help="Number of GPUs, instead of --cluster.  [default: 2]"
)
gpu_kind_option = click.option(
    "--gpu-kind",
    type=NearestChoice(tuple(DEVICE_KINDS), case_sensitive=False),
    metavar="KIND",
    help="Kind of the GPUs.  [default: that of the model, else k80]",
)
micro_batches_option = number_option(
    "--micro-batches",
    default=1,
    help="Number of micro-batches of a step, as in GPipe. A model is captured with a micro-batch "
    "as its batch; the ops of a file are divided.",
)


def _copies(text: str) -> str | int | tuple[int, ...]:
    if text == AUTO:
        return text
    numbers = text.split("+")
    if not all(number.isdecimal() for number in numbers):
        raise InputError(f"expected {AUTO}, a number such as 4, or 24+12+6, got {text!r}")
    return int(text) if len(numbers) == 1 else tuple(map(int, numbers))


copies_option = click.option(
    "--copies",
    type=Parsed("number", _copies),
    default=AUTO,
    show_default=False,
    help="Number of copies of the model, which share the batch and sum their gradients (data "
    "parallel); or the samples of each, such as 24+12+6; or auto.  [default: auto: the fastest "
    "choice in `placeto place`, those of a placement file, else 1]",
)
shard_option = click.option(
    "--shard",
    is_flag=True,
    help="Divide weights, gradients and optimizer state among the copies (FSDP).",
)
schedule_option = click.option(
    "--schedule",
    type=NearestChoice(SCHEDULES),
    help="Schedule of a step in micro-batches: gpipe, the whole forward pass first; 1f1b, at most "
    "k - s micro-batches on stage s of k.  [default: no waits, backward ops first]",
)
grouping_options = gathered(
    "grouping",
    _grouping,
    click.option(
        "--rule",
        "rules",
        type=NearestChoice([*NAMED_RULES, "none"]),
        multiple=True,
        help="Rule for ops that stay together; may be repeated.  [default: those of the model]",
    ),
    click.option(
        "--scope-pattern",
        "patterns",
        multiple=True,
        metavar="REGEX",
        help="Regular expression: ops whose scopes begin with the same match stay together, too; "
        "may be repeated.",
    ),
    number_option(
        "--groups",
        "num_groups",
        help="Number of groups at which merging stops.  [default: that of the model, else 128]",
    ),
    number_option(
        "--min-output-bytes",
        metavar="BYTES",
        help="Size of outputs, in bytes, from which on a group is not merged.  [default: none]",
    ),
    click.option("--no-merging", is_flag=True, help="Keep the groups of the rules, unmerged."),
)


def _pin(text: str) -> tuple[str, str]:
    name, _equals, device = text.rpartition("=")
    if not (name and device):
        raise InputError(f"expected SCOPE=DEVICE, got {text!r}")
    return name, device


restriction_options = gathered(
    "restrictions",
    Restrictions,
    click.option(
        "--pin",
        "pins",
        type=Parsed("scope=device", _pin),
        multiple=True,
        help="Module, or op, whose ops have to be on a device, such as model.layers.0=k80:0; may "
        "be repeated.",
    ),
    click.option(
        "--forbid",
        "forbidden",
        multiple=True,
        metavar="DEVICE",
        help="Device that gets no ops, such as k80:1; may be repeated.",
    ),
)
# All options of a problem, which make one argument ``options``.
problem_options = gathered(
    "options",
    ProblemOptions,
    gpus_option,
    gpu_kind_option,
    cluster_option,
    link_option,
    source_options,
    micro_batches_option,
    copies_option,
    shard_option,
    grouping_options,
    restriction_options,
)


class PlacementArguments(NamedTuple):
    """A problem and a placement, as a user names them."""

    problem: str
    placement: str
    schedule: str | None
    options: ProblemOptions

    def read(self, *, waits: bool = True) -> tuple[PlacementProblem, NDArray[np.int32]]:
        """Return the placement, and the problem at its level, with the waits of its schedule."""
        with showing_progress(self.problem) as progress:
            options = with_copies_of(self.options, self.problem, self.placement)
            schedule = self.schedule
            if options is not self.options and options.micro_batches == 1:
                schedule = None
            problem = problem_of(read_source(self.problem, options), options)
            resolved_problem, placement = resolved(self.placement, problem, schedule, progress)
        if not waits:
            resolved_problem = replace(resolved_problem, graph=problem.graph)
        return resolved_problem, placement


def with_copies_of(options: ProblemOptions, problem: str, placement: str) -> ProblemOptions:
    """Return options of a model with the copies of a placement file, unless they say others."""
    is_decided = options.copies != AUTO or is_graph_file(problem)
    if is_decided or not (placement.endswith(".json") and Path(placement).is_file()):
        return options
    copies = load_copies(placement)
    return options if copies is None else options.of_copies(copies)


def resolved(
    text: str, problem: PlacementProblem, schedule: str | None, progress: Progress
) -> tuple[PlacementProblem, NDArray[np.int32]]:
    """Return a placement that a user named, and the problem at its level, by its schedule."""
    resolved_problem, placement = resolve_placement(text, problem, progress, schedule)
    warning = sent_back_text(resolved_problem, placement)
    if warning:
        progress.say(warning)
    return resolved_problem, placement


# The arguments PROBLEM and PLACEMENT with these options, which make one argument ``arguments``.
placed_options = gathered(
    "arguments",
    PlacementArguments,
    click.argument("problem"),
    click.argument("placement"),
    schedule_option,
    problem_options,
)
