"""``placeto run``."""

from pathlib import Path

import click

from placeto.errors import InputError, writing
from placeto.placing.place_problem import resolve_placement
from placeto.problems.making import runnable_problem, runnable_source
from placeto.problems.options import ProblemOptions
from placeto.texts import TextTable, counted, seconds_text
from placeto_execution import Executor
from placeto_execution.devices import RealDevices
from placeto_execution.measuring import MeasuredSteps, Report, steps_report
from placeto_simulator import Simulator
from placeto_tools.options import (
    Command,
    devices_options,
    json_option,
    overwrite_option,
    steps_option,
    trace_option,
)
from placeto_tools.problem_options import problem_options
from placeto_tools.screen import show_report, showing_progress, table_of


@click.command(cls=Command)
@click.argument("source", metavar="MODEL")
@click.argument("placement")
@devices_options
@click.option(
    "--problem",
    "problem_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Problem file of this model, by `placeto build` or `placeto profile`, with devices, "
    "times and groups; instead of --cluster, --link, --groups and other options of groups.  "
    "[default: none]",
)
@steps_option(20)
@click.option(
    "--emulate-links",
    is_flag=True,
    help="Send tensors between CPUs with the latency and bandwidth of the cluster's links, instead "
    "of as fast as possible. Not for GPUs.",
)
@trace_option
@problem_options
@json_option
@overwrite_option
def run(
    source: str,
    placement: str,
    devices: RealDevices,
    problem_file: Path | None,
    steps: int,
    emulate_links: bool,
    trace: Path | None,
    options: ProblemOptions,
    as_json: bool,
) -> None:
    """Run a placed step on devices of this machine.

    By default it measures 20 steps on two CPUs, and shows measured and simulated times. MODEL is
    one of `placeto build` that has a model; give the sizes that its problem was built with. Inputs
    are random, and so are weights that the source does not have. PLACEMENT is as in `placeto
    simulate`.

    Each CPU is a process. Ops run in the order of the simulated step, and processes send tensors to
    each other. The process of the command runs all GPUs.

    \b
    placeto profile inception-v3 --batch-size 2 --devices cpu:0,cpu:1 -o problem.json.gz
    placeto place problem.json.gz --seconds 5 -o placement.json
    placeto run inception-v3 placement.json --batch-size 2 --devices cpu:0,cpu:1 \\
        --problem problem.json.gz --trace trace.json
    """
    if problem_file and options != ProblemOptions(choice=options.choice):
        raise InputError(
            "--problem: excludes --cluster, --link, --micro-batches and options of groups, which "
            "the problem file has"
        )
    with showing_progress() as progress:
        progress.update(f"{source}: making and capturing it ...")
        model = runnable_source(source, options.choice)
        problem, step = runnable_problem(model, options, devices, problem_file)
        problem, device_of_group = resolve_placement(placement, problem, progress)
        simulator = Simulator(problem, num_threads=1)
        with Executor(
            problem,
            step,
            devices.names,
            emulated_links=problem.cluster if emulate_links else None,
            schedule=simulator.timeline,
        ) as executor:
            timelines = executor.measure(
                device_of_group,
                steps,
                lambda count: progress.update(f"{model.name}: {count} of {steps} steps"),
            )
    measured = MeasuredSteps(simulator.timeline(device_of_group), timelines)
    report = steps_report(measured)
    if trace:
        with writing(trace):
            measured.typical.to_chrome_trace(trace)
    show_report(report, *_tables(report), as_json=as_json)


def _tables(report: Report) -> list[TextTable]:
    low, high = report["measured_quartiles"]
    return [
        table_of(
            f"Median of {counted(report['steps'], 'step')}: "
            f"{seconds_text(report['measured_runtime'])} "
            f"(half of them {seconds_text(low)} to {seconds_text(high)}); simulated "
            f"{seconds_text(report['simulated_runtime'])}, {report['error']:+.1%}",
            report["devices"],
            "device | >ops | >busy: measured_busy | >simulated: simulated_busy | "
            ">peak memory: measured_peak_memory | >simulated: simulated_peak_memory",
        ),
        table_of(
            "Links",
            [row for row in report["links"] if row["transfers"]],
            "link | >transfers | >busy: measured_busy | >simulated: simulated_busy",
        ),
        table_of(
            "Ops whose seconds differ most",
            report["ops"],
            "op | on: device | >measured | >simulated",
        ),
    ]
