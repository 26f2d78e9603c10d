"""``placeto bench``."""

import click
import msgspec

from placeto_tools.benchmarks.measured_packages import BENCHMARKS
from placeto_tools.options import Command, NearestChoice, json_option
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show_json


@click.command(cls=Command)
@click.argument("names", nargs=-1, type=NearestChoice(list(BENCHMARKS)), metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Small sizes: seconds for most, but less telling.")
@json_option
def bench(names: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Measure how fast the packages are: graphs, simulator, policy, baselines, workloads, capture.

    Without NAME all of them, which takes long; docs/benchmarks.md has what they gave elsewhere.

    \b
    placeto bench --quick
    placeto bench simulator --json
    """
    reports = []
    for name in names or BENCHMARKS:
        with showing_progress() as progress:
            progress.say(f"{name}: {BENCHMARKS[name].measures}")
            report = BENCHMARKS[name].run(quick=quick)
        if as_json:
            reports.append({"benchmark": name, **msgspec.to_builtins(report)})
        else:
            click.echo(f"\n{name}: {BENCHMARKS[name].measures}\n\n{report.markdown()}")
    if as_json:
        show_json(reports)
