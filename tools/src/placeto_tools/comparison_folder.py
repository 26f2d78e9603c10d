"""The folder of a comparison: results so far, problems, placements, curves and the report."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from placeto_baselines import bound_parts
from placeto_graphs import PlacementResult
from placeto_graphs import save_placement
from placeto_graphs import save_problem
from placeto_tools.comparison import CPU
from placeto_tools.comparison import Case
from placeto_tools.comparison import has_cpu
from placeto_tools.comparison import typical_runtime
from placeto_tools.comparison_tables import markdown
from placeto_tools.curve_files import RESULTS
from placeto_tools.errors import InputError
from placeto_tools.errors import writing
from placeto_tools.outputs import make_folder
from placeto_tools.outputs import write_json
from placeto_tools.outputs import write_text
from placeto_tools.placers import SCHEMES
from placeto_tools.reports.contents import Shown
from placeto_tools.reports.contents import problem_report
from placeto_tools.reports.page import report_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Report = dict[str, Any]
FORMAT = "placeto-comparison"
PAGE = "results.md"
REPORT = "report.html"
CURVES = "curves.png"
LEVELS = ("single", "expert", "scotch")  # drawn beside the curves of the searches


class ComparisonFolder:
    """A folder with ``results.json``, ``results.md``, ``report.html``, and one for each problem.

    Everything is written as soon as it is known: a comparison may take hours.

    Parameters
    ----------
    path
        The folder.
    force
        Whether it may hold an earlier comparison already.

    Raises
    ------
    InputError
        When it holds something else, or something and need not be overwritten.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        make_folder(path, force=force)
        _check_ours(path)
        self.path = path
        self._cases: list[Path] = []
        self._shown: list[Shown] = []
        self._reported: list[Report] = []

    def add_case(self, case: Case) -> None:
        """Make the folder of the next problem, and write the problem."""
        stem = name = re.sub(r"[^\w.+-]+", "-", f"{case.source}-{case.cluster}")
        while self.path / name in self._cases:  # two sources may have one name
            name = f"{stem}-{len(self._cases) + 1}"
        folder = self.path / name
        with writing(folder):
            folder.mkdir(exist_ok=True)
            save_problem(case.problem, folder / "problem.json.gz")
        self._cases.append(folder)
        self._shown = []

    def add_placement(self, case: Case, name: str, best: PlacementResult | None) -> None:
        """Write the best placement of a scheme on the last problem."""
        if best is not None and (name != CPU or has_cpu(case.problem)):
            path = self._cases[-1] / f"{name}.json"
            with writing(path):
                save_placement(best.placement, case.problem, path)
            self._shown.append(_shown(case, name, best))

    def write_report(self, case: Case) -> None:
        """Write ``report.html`` once the last problem has all its schemes."""
        if self._shown:
            title = f"{case.source} on {case.cluster}"
            bounds = bound_parts(case.problem)
            self._reported.append(problem_report(title, case.problem, bounds, self._shown))
            write_text(self.path / REPORT, report_page("Comparison of schemes", self._reported))

    def write(self, document: Report) -> None:
        """Write the results so far; the last problem may not have all schemes yet."""
        folders = [folder.name for folder in self._cases]
        problems = document["problems"]
        _draw(problems[-1], self._cases[-1] / CURVES)
        write_json(self.path / RESULTS, document)
        write_text(self.path / PAGE, markdown(problems, [f"{name}/{CURVES}" for name in folders]))


def comparison_figure(report: Report) -> "Figure":
    """Return the learning curves of the searches on one problem, and the levels of others."""
    from placeto_tools.plots.curves import curves_figure  # noqa: PLC0415 (matplotlib)

    curves, levels = {}, {"lower bound": report["lower_bound"]}
    for scheme in report["schemes"]:
        of_seeds = [_known(run["curve"]) for run in scheme["runs"]]
        runtime = typical_runtime(scheme)
        if SCHEMES[scheme["name"]].budget:
            curves[scheme["title"]] = [curve for curve in of_seeds if len(curve)]
        elif scheme["name"] in LEVELS and runtime is not None:
            levels[scheme["title"]] = runtime
    return curves_figure(curves, levels, f"{report['source']} on {report['cluster']}")


def _shown(case: Case, name: str, best: PlacementResult) -> Shown:
    return Shown(
        title=SCHEMES[name].title,
        problem=case.problem,
        placement=best.placement,
        curve=_known_rows(best.curve.tolist()) if SCHEMES[name].budget else (),
        evaluations=best.evaluations,
        seconds=best.seconds,
    )


def _check_ours(path: Path) -> None:
    """Refuse a folder with files that no comparison has written, whatever was asked for."""
    if not any(path.iterdir()):
        return
    try:
        document = json.loads((path / RESULTS).read_text())
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path}: expected a folder of `placeto compare`, with its {RESULTS}")


def _draw(report: Report, path: Path) -> None:
    from placeto_tools.plots.png import save_png  # noqa: PLC0415 (matplotlib)

    save_png(comparison_figure(report), path)


def _known(rows: Sequence[Sequence[float | None]]) -> Any:
    known = [row for row in rows if row[1] is not None]
    return np.array(known, np.float64).reshape(-1, 2)


def _known_rows(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(row) for row in rows if np.isfinite(row[1])]
