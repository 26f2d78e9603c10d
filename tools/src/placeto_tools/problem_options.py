"""Options that describe a problem: the source, its sizes, the devices, the groups."""

import click

from placeto.problems.options import TRAINING, GroupingOptions, ProblemOptions, SourceOptions
from placeto.problems.sources import parse_sizes
from placeto_graphs import NAMED_RULES
from placeto_tools.options import KeyValue, NearestChoice, gathered, link_option


def _choice(
    sizes: tuple[tuple[str, str], ...],
    batch_size: int | None,
    sequence_length: int | None,
    family_seed: int,
    trust: bool,
    mask_fraction: float | None,
    mode: str,
    context: int | None,
    weight_bits: str | None,
) -> SourceOptions:
    parsed = parse_sizes(sizes, batch_size, sequence_length)
    return SourceOptions(
        parsed,
        family_seed,
        trust,
        mask_fraction,
        mode,
        context,
        None if weight_bits is None else int(weight_bits),
    )


source_options = gathered(
    "choice",
    _choice,
    click.option(
        "--batch-size",
        type=int,
        help="Examples in a step; short for --set batch_size=N.",
    ),
    click.option(
        "--sequence-length",
        type=int,
        help="Tokens in an example; short for --set sequence_length=N.",
    ),
    click.option(
        "--set",
        "sizes",
        type=KeyValue(),
        multiple=True,
        help="A size of the model, such as steps=16; `placeto models` lists them. Of a model "
        "of a library a value of its configuration, of a factory an argument, as JSON.",
    ),
    click.option(
        "--family-seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Seed of the draw of a family's 32 members.",
    ),
    click.option(
        "--trust",
        is_flag=True,
        help="Load a .pt2 file, which can run code that it brings along.",
    ),
    click.option(
        "--mask-fraction",
        type=click.FloatRange(min=0, min_open=True, max=1),
        help="Part of all elements that a mask of unknown values picks; 1 is an upper bound.  "
        "[default: such a mask is refused]",
    ),
    click.option(
        "--mode",
        type=NearestChoice([TRAINING, "prefill", "decode"]),
        default=TRAINING,
        show_default=True,
        help="Step of a model of transformers: training, or of inference with a cache of keys and "
        "values: prefill, a prompt that fills it, or decode, one token with a full one.",
    ),
    click.option(
        "--context",
        type=click.IntRange(min=1),
        metavar="TOKENS",
        help="Tokens of a sequence in that cache.  [default: 2048, or the configuration's longest]",
    ),
    click.option(
        "--weight-bits",
        type=click.Choice(["4", "8", "16"]),
        help="Bits of each weight of linear layers and experts in prefill and decode; with the "
        "scales of 4 and 8 they are 4.5 and 8.5.  [default: those of the dtype]",
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
        raise click.UsageError("--no-merging: expected no --groups or --min-output-bytes")
    return GroupingOptions(rules, patterns, num_groups, min_output_bytes, not no_merging)


cluster_option = click.option(
    "--cluster",
    metavar="SPEC|FILE",
    help="Devices: a text such as 2xk80 or 1xcpu+4xk80, or a TOML file.  [default: 2xk80, "
    "or those that the source has or was measured on]",
)
micro_batches_option = click.option(
    "--micro-batches",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of parts of its batch in which a step runs, as in GPipe. Models are captured with "
    "a part as their batch, files are divided.",
)
grouping_options = gathered(
    "grouping",
    _grouping,
    click.option(
        "--rule",
        "rules",
        type=NearestChoice([*NAMED_RULES, "none"]),
        multiple=True,
        help="Rule of ops that stay together; may be repeated.  [default: those of the source]",
    ),
    click.option(
        "--scope-pattern",
        "patterns",
        multiple=True,
        metavar="REGEX",
        help="Also keep together ops whose scopes begin with the same match.",
    ),
    click.option(
        "--groups",
        "num_groups",
        type=click.IntRange(min=1),
        help="Number of groups at which merging stops.  [default: 128, or those of the family]",
    ),
    click.option(
        "--min-output-bytes",
        type=click.IntRange(min=1),
        metavar="BYTES",
        help="Size of outputs from which on groups are not merged.",
    ),
    click.option("--no-merging", is_flag=True, help="Keep the groups of the rules."),
)


# All options of a problem, which make one argument ``asked``.
problem_options = gathered(
    "asked",
    ProblemOptions,
    cluster_option,
    link_option,
    source_options,
    micro_batches_option,
    grouping_options,
)
