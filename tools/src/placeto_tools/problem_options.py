"""Options that say what problem is meant: the source, its sizes, the devices, the groups."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import click

from placeto.problems.options import GroupingOptions, ProblemOptions, SourceOptions
from placeto.problems.sources import parse_sizes
from placeto_graphs import NAMED_RULES
from placeto_tools.options import (
    Decorator,
    Function,
    KeyValue,
    NearestChoice,
    decorated,
    link_option,
)


def problem_options(set_option: str = "--set") -> Decorator:
    """Add all options of a problem, as one argument ``asked``.

    Parameters
    ----------
    set_option
        What the option of sizes is called, where ``--set`` means something else.
    """

    def decorator(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def gathered(
            *args: Any,
            cluster: str | None,
            link: str | None,
            choice: SourceOptions,
            micro_batches: int,
            grouping: GroupingOptions,
            **named: Any,
        ) -> Any:
            asked = ProblemOptions(cluster, link, choice, micro_batches, grouping)
            return function(*args, asked=asked, **named)

        decorators: list[Decorator] = [
            cluster_option,
            link_option,
            partial(source_options, set_option=set_option),
            micro_batches_option,
            grouping_options,
        ]
        return decorated(gathered, decorators)

    return decorator


def source_options(function: Callable[..., Any], set_option: str = "--set") -> Any:
    """Add what says which member or size of a source is meant, as one argument ``choice``."""
    decorators = [
        click.option(
            "--batch-size",
            type=int,
            help=f"Examples in a step; short for {set_option} batch_size=N.",
        ),
        click.option(
            "--sequence-length",
            type=int,
            help=f"Tokens in an example; short for {set_option} sequence_length=N.",
        ),
        click.option(
            set_option,
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
            help="Which draw of a family's 32 members.",
        ),
    ]

    @wraps(function)
    def gathered(
        *args: Any,
        batch_size: int | None,
        sequence_length: int | None,
        sizes: tuple[tuple[str, str], ...],
        family_seed: int,
        **named: Any,
    ) -> Any:
        given = parse_sizes(sizes, batch_size, sequence_length)
        choice = SourceOptions(given, family_seed)
        return function(*args, choice=choice, **named)

    return decorated(gathered, decorators)


def cluster_option(function: Function) -> Function:
    """Add ``--cluster``."""
    return click.option(
        "--cluster",
        metavar="SPEC|FILE",
        help="The devices: a text such as 2xk80 or 1xcpu+4xk80, or a TOML file.  [default: 2xk80, "
        "or what the source has or was measured on]",
    )(function)


def micro_batches_option(function: Function) -> Function:
    """Add ``--micro-batches``."""
    return click.option(
        "--micro-batches",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="In how many parts of its batch a step runs, as in GPipe. Models are captured with a "
        "part as their batch, files are divided.",
    )(function)


def grouping_options(function: Callable[..., Any]) -> Any:
    """Add the options of co-location and merging, as one argument ``grouping``."""
    decorators = [
        click.option(
            "--rule",
            "rules",
            type=NearestChoice([*NAMED_RULES, "none"]),
            multiple=True,
            help="Which ops are kept together; may be repeated. By default what suits the source.",
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
            help="Merge until so many groups are left.  [default: 128, or those of the family]",
        ),
        click.option(
            "--min-output-bytes",
            type=click.IntRange(min=1),
            metavar="BYTES",
            help="Leave groups alone whose outputs have so many bytes.",
        ),
        click.option("--no-merging", is_flag=True, help="Keep the groups of the rules."),
    ]

    @wraps(function)
    def gathered(
        *args: Any,
        rules: tuple[str, ...],
        patterns: tuple[str, ...],
        num_groups: int | None,
        min_output_bytes: int | None,
        no_merging: bool,
        **named: Any,
    ) -> Any:
        if no_merging and (num_groups or min_output_bytes):
            raise click.UsageError("--no-merging: expected no --groups or --min-output-bytes")
        grouping = GroupingOptions(
            rules=rules,
            patterns=patterns,
            num_groups=num_groups,
            min_output_bytes=min_output_bytes,
            merging=not no_merging,
        )
        return function(*args, grouping=grouping, **named)

    return decorated(gathered, decorators)
