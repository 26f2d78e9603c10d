"""``placeto place``."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import click

from placeto.errors import DOES_NOT_FIT, InputError, writing
from placeto.placing.choices import choices_report, choices_table, used_devices, verdict
from placeto.placing.copies import (
    copies_verdict,
    place_source,
    remarks_on_copies,
)
from placeto.placing.cost_texts import (
    bound_text,
    levels_hint,
    overflow_text,
    remedy_text,
    too_large_text,
)
from placeto.placing.costs import cost_of_result
from placeto.placing.evaluators import EvaluatorSpec, evaluator_spec
from placeto.placing.max_context import largest_context
from placeto.placing.place_problem import (
    DEFAULT_SECONDS,
    NOTHING,
    PRETRAINED,
    STARTS,
    PlacedProblem,
    PlaceSettings,
    sent_back_text,
)
from placeto.placing.placers import DEFAULT_REFINEMENT_ROUNDS, PLACERS, placer_spec
from placeto.placing.reports import bottleneck_text, rate_text
from placeto.problems.making import options_with_devices, problem_of, read_source
from placeto.problems.options import ProblemOptions
from placeto.problems.sources import Source, most_micro_batches
from placeto.texts import SECONDS, bytes_text, counted
from placeto.training.folder import read_policy
from placeto_baselines import least_excess
from placeto_graphs import PlacementProblem, save_placement
from placeto_simulator import Simulator
from placeto_tools.options import (
    PLACER_NAME,
    Command,
    NearestChoice,
    Positive,
    check_heeded,
    evaluator_option,
    number_option,
    result_options,
    seed_option,
)
from placeto_tools.problem_options import problem_options, schedule_option
from placeto_tools.screen import recorded_warnings, show, show_json, showing_progress


@click.command(cls=Command)
@click.argument("problem_name", metavar="PROBLEM")
@click.option(
    "--seconds",
    type=Positive(),
    help="Seconds of the portfolio search; with --policy, of a search from the placement of the "
    "policy; with --placer, CPU seconds after which the placer is stopped.  "
    f"[default: {DEFAULT_SECONDS:g}; no limit with --max-evaluations or --placer; no search with "
    "--policy]",
)
@click.option(
    "--placer",
    type=PLACER_NAME,
    metavar="NAME",
    help=f"Placer instead of the search: {', '.join(PLACERS)}; or your own, package.module:Class, "
    "with arguments after colons, as in package.module:Class:depth=3.  [default: none]",
)
@evaluator_option
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Policy instead of the search: a folder of `placeto train`, or a policy file.  "
    "[default: none]",
)
@click.option(
    "--start",
    type=NearestChoice(STARTS),
    help="Start of the search: nothing; or pretrained, a placement of the bundled pretrained "
    f"policy.  [default: {STARTS[0]}]",
)
@number_option(
    "--max-evaluations",
    help="Maximum number of evaluations of the search or placer; with --policy, of a further "
    "training.  [default: no limit for the search, no further training, or that of the placer]",
)
@number_option(
    "--rollouts",
    minimum=0,
    help="Number of rollouts that --policy samples besides its most probable placement; the best "
    "is taken.  [default: 0]",
)
@number_option(
    "--refinement-rounds",
    minimum=0,
    help="Maximum number of rounds of coordinate descent after --policy: in each, every group "
    "moves to the device where it costs least.  "
    f"[default: {DEFAULT_REFINEMENT_ROUNDS}; 0 with --seconds]",
)
@click.option(
    "--what-if",
    "additions",
    multiple=True,
    metavar="+SPEC",
    help="Devices to add, such as +1xrtx4090: the model is also placed on that larger cluster, and "
    "a table compares it; may be repeated.",
)
@schedule_option
@click.option(
    "--max-context",
    is_flag=True,
    help="Place a decode step with the largest context, in steps of 256 tokens, at which a "
    "placement is found that fits.",
)
@problem_options
@seed_option
@result_options("Placement file to write: .json.", ".json")
def place(
    problem_name: str,
    seconds: float | None,
    placer: str | None,
    objective: str | None,
    policy: Path | None,
    start: str | None,
    max_evaluations: int | None,
    rollouts: int | None,
    refinement_rounds: int | None,
    additions: tuple[str, ...],
    schedule: str | None,
    max_context: bool,
    options: ProblemOptions,
    seed: int,
    output: Path,
    as_json: bool,
) -> None:
    """Place a problem by search, another placer or a trained policy.

    By default a portfolio search takes 10 seconds. It shows the best runtime so far; Ctrl-C ends
    it and keeps the best placement. You see the distance to the lower bound, and a table of
    placements on fewer devices. The placement may have more groups than the problem, unless
    --groups sets their number; other commands recognise the groups by their names.

    A placement that fits the memory ranks above a faster one that does not. If none fits, the best
    one that does not is written, and the exit code is 3.

    PROBLEM is a problem file, or any other MODEL of `placeto build` with its options. If it is not
    a problem file, give the same options to every command that uses the placement.

    \b
    placeto place problem.json.gz --seconds 10 -o placement.json
    placeto place problem.json.gz --placer local-search --max-evaluations 5000 -o placement.json
    placeto place problem.json.gz --policy run -o placement.json
    placeto place problem.json.gz --policy run --seconds 5 -o placement.json
    placeto place nmt-2 --cluster 2xk80 --what-if +1xv100 -o placement.json
    """
    of_policy = {"--rollouts": rollouts, "--refinement-rounds": refinement_rounds}
    _check_ways(placer, policy, start, of_policy)
    if placer is not None:
        values = {"max_evaluations": max_evaluations, "seconds": seconds, "seed": seed}
        check_heeded([placer_spec(placer)], "--placer", **values)
    options = _with_largest_context(problem_name, options, seed) if max_context else options
    with recorded_warnings() as messages, showing_progress(problem_name):
        source = read_source(problem_name, options)
        problem = problem_of(source, options.before_copies)
    priced_by = evaluator_spec(objective or source.evaluator)
    needing_steps = {f"--start {PRETRAINED}": start == PRETRAINED, "--schedule": schedule}
    for option, is_given in needing_steps.items():
        if is_given and not priced_by.simulates:
            raise InputError(f"{option}: excludes --objective {priced_by.name}")
    larger = {
        added: _with_devices(problem_name, source, problem, options, added) for added in additions
    }
    problems = [problem, *(larger_problem for _, larger_problem, _ in larger.values())]
    hint = "" if options.grouping.fixes_num_groups else levels_hint(problem_name, problem)
    settings = PlaceSettings(
        seconds=seconds,
        max_evaluations=max_evaluations,
        seed=seed,
        start=start or NOTHING,
        placer=placer,
        policy=read_policy(policy, *problems) if policy else None,
        rollouts=rollouts or 0,
        refinement_rounds=refinement_rounds,
        evaluator=priced_by,
        keeps_groups=options.grouping.fixes_num_groups,
    )
    with showing_progress() as progress:
        placed = place_source(source, problem, options, schedule, settings, progress)
        placed_with = {
            added: place_source(*sources, schedule, settings, progress)
            for added, sources in larger.items()
        }
    searched = placed.one_copy or placed
    unscheduled = replace(searched.problem, graph=problem.graph)  # without the waits of a schedule
    problem, result = placed.problem, placed.result
    with writing(output):
        save_placement(result.placement, problem, output, placed.copies)
    fits = result.fits(problem.cluster)
    with showing_progress() as progress:
        progress.update("memory that every placement needs ...")
        excess = least_excess(searched.problem) if priced_by.simulates else 0
        remedy = ""
        if not fits:
            micro_batches = partial(most_micro_batches, problem_name, options.choice)
            remedy = remedy_text(unscheduled, searched.result, priced_by, micro_batches)
    report = {
        "output": str(output),
        "placer": placed.placer,
        "evaluator": priced_by.name,
        "objective": priced_by.objective,
        "unit": priced_by.unit,
        **_report(placed),
        **({"least_excess": excess} if priced_by.simulates else {}),
    }
    if placed_with:
        report["what_if"] = {
            added: _report(with_devices) for added, with_devices in placed_with.items()
        }
    if as_json:
        show_json(report)
    else:
        _show_placement(output, placed, priced_by, excess, is_doubtful=bool(messages))
        for added, placed_larger in placed_with.items():
            _show_what_if(added, placed_larger, placed, priced_by)
    if hint and not placer and not policy:
        click.echo(hint, err=True)
    for remark in _remarks(placed, priced_by):
        click.echo(remark, err=True)
    if not fits:
        click.echo(f"no placement found fits the memory{too_large_text(problem)}{remedy}", err=True)
        sys.exit(DOES_NOT_FIT)


def _check_ways(
    placer: str | None, policy: Path | None, start: str | None, of_policy: Mapping[str, int | None]
) -> None:
    """Refuse options of another way to place than the one that is named."""
    if placer is not None and policy is not None:
        raise InputError("--policy: excludes --placer")
    if start is not None and (placer is not None or policy is not None):
        raise InputError("--start: excludes --placer and --policy")
    for option, value in of_policy.items():
        if value is not None and policy is None:
            raise InputError(f"{option}: needs --policy")


def _with_devices(
    name: str, source: Source, problem: PlacementProblem, options: ProblemOptions, added: str
) -> tuple[Source, PlacementProblem, ProblemOptions]:
    """Return the same problem with more devices; a step on CPUs alone is captured anew for GPUs."""
    larger_options = options_with_devices(options, problem, added)
    if larger_options.target != options.target:
        source = read_source(name, larger_options)
    return source, problem_of(source, larger_options.before_copies), larger_options


def _remarks(placed: PlacedProblem, evaluator: EvaluatorSpec) -> list[str]:
    """Return what slows a placement down, as far as it is known."""
    problem, placement = placed.problem, placed.result.placement
    remarks = [placed.no_copies, sent_back_text(problem, placement)]
    if placed.copies:
        remarks += remarks_on_copies(problem)
    if evaluator.simulates:
        remarks.append(bottleneck_text(Simulator(problem, 1).timeline(placement)))
    return [remark for remark in remarks if remark]


def _report(placed: PlacedProblem) -> dict[str, object]:
    """Return the costs of a placement as JSON has them, also on fewer devices."""
    problem, result = placed.problem, placed.result
    return {
        "runtime": result.runtime,
        "fits": result.fits(problem.cluster),
        "peak_memory": result.peak_memory.tolist(),
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "groups": problem.num_groups,
        **({"context": problem.graph.cache.context} if problem.graph.cache else {}),
        **({"lower_bound": placed.bound} if placed.bound else {}),
        **({"copies": asdict(placed.copies)} if placed.copies else {}),
        "devices": used_devices(problem, result.placement),
        "choices": choices_report(problem, result, placed.choices),
    }


def _show_what_if(
    added: str, placed: PlacedProblem, present: PlacedProblem, evaluator: EvaluatorSpec
) -> None:
    """Show the costs on a larger cluster, relative to those on the present one."""
    problem, result = placed.problem, placed.result
    faster = ""
    if result.runtime and present.result.fits(present.problem.cluster):
        faster = f", {present.result.runtime / result.runtime:.2f}x as fast"
    click.echo(
        f"\nWith {added}: {evaluator.text(result.runtime)}{faster}"
        f"{overflow_text(problem.cluster, result.peak_memory)}"
    )
    _show_choices(placed, evaluator)


def _with_largest_context(problem_name: str, options: ProblemOptions, seed: int) -> ProblemOptions:
    """Return options with the largest context at which a placement was found that fits."""
    with showing_progress(problem_name) as progress:
        context = largest_context(problem_name, options, seed, progress)
    click.echo(f"context: {context:,} tokens, the largest that fits", err=True)
    return replace(options, choice=replace(options.choice, context=context))


def _show_placement(
    output: Path,
    placed: PlacedProblem,
    evaluator: EvaluatorSpec,
    excess: int,
    *,
    is_doubtful: bool,
) -> None:
    """Show the costs of a placement beside the lower bound and placements on fewer devices."""
    problem, result = placed.problem, placed.result
    objective = "" if evaluator.simulates else f"{evaluator.objective} "
    rate = ""
    if evaluator.unit == SECONDS:
        rate = rate_text(problem, result.placement, result.runtime, is_doubtful=is_doubtful)
    peaks = ", ".join(bytes_text(peak) for peak in result.peak_memory.tolist())
    click.echo(
        f"{output}: {placed.placer}, {objective}{evaluator.text(result.runtime)}{rate}"
        f"{overflow_text(problem.cluster, result.peak_memory)}; peak memory {peaks}; "
        f"{counted(result.evaluations, 'evaluation')} in {result.seconds:.1f} s"
    )
    if placed.bound:
        searched = placed.one_copy or placed
        text = bound_text(placed.bound, excess, searched.problem.num_groups)
        percent_above = 100 * (cost_of_result(searched.problem, searched.result) / placed.bound - 1)
        if placed.copies:
            text, which = f"with one copy, {text}", "the best"
        else:
            which = "this one"
        click.echo(f"{text}; {which} takes {percent_above:.1f} % more")
    _show_choices(placed, evaluator)


def _show_choices(placed: PlacedProblem, evaluator: EvaluatorSpec) -> None:
    """Show placements on fewer devices, and what they tell, if a search took place."""
    problem, result, choices = placed.problem, placed.result, placed.choices
    if choices:
        click.echo(copies_verdict(placed) or verdict(problem, result, choices))
        show(choices_table(problem, result, choices, evaluator))
