"""Files of a comparison besides its tables: the best placements, and a page that shows them."""

import shutil
from urllib.parse import quote

import numpy as np

from placeto.errors import writing
from placeto.outputs import write_text
from placeto.placing.placers import PlacerSpec
from placeto.trials.comparing import Comparison
from placeto.trials.comparison import CPU
from placeto.trials.folder import ExperimentFolder
from placeto.trials.placing_tasks import has_cpu
from placeto.trials.records import Placed
from placeto.trials.trials import Graph
from placeto_baselines import bound_parts
from placeto_graphs import PlacementProblem, save_placement
from placeto_tools.reports.contents import Shown, problem_report
from placeto_tools.reports.page import report_page

REPORT = "report.html"
IN_FILES = ":=+,"  # besides letters and digits


def write_best(comparison: Comparison, folder: ExperimentFolder, *, page: bool) -> None:
    """Write the best placement of each placer, and if ``page`` is ``report.html``, to show them.

    The placements are ``placements/PROBLEM/PLACER.json`` of the folder.
    """
    reports = []
    for case in comparison.cases:
        best = {name: comparison.best(folder.results, case, name) for name in comparison.placers}
        known = {name: run for name, run in best.items() if run is not None}
        placements = folder.path / "placements" / case.name
        with writing(folder.path):  # what an earlier problem of this name left
            shutil.rmtree(placements, ignore_errors=True)
        if not known:
            continue
        problem = folder.workspace.problem(Graph(case.name))
        if not has_cpu(problem):
            known.pop(CPU, None)  # it is one of another problem
        shown = {
            name: _shown(comparison.placers[name], run, problem) for name, run in known.items()
        }
        for name, each in shown.items():
            with writing(placements):
                placements.mkdir(parents=True, exist_ok=True)
                save_placement(
                    each.placement, problem, placements / f"{quote(name, IN_FILES)}.json"
                )
        if page and shown and case.evaluator.simulates:
            title = f"{case.source} on {case.cluster}"
            reports.append(
                problem_report(title, problem, bound_parts(problem), list(shown.values()))
            )
    with writing(folder.path):  # that of earlier problems, or of fewer placers
        (folder.path / REPORT).unlink(missing_ok=True)
    if reports:
        write_text(folder.path / REPORT, report_page("Comparison of placers", reports))


def _shown(placer: PlacerSpec, run: Placed, problem: PlacementProblem) -> Shown:
    return Shown(
        title=placer.title,
        problem=problem,
        placement=np.array(run.placement, np.int32),
        curve=[row for row in run.curve if row[1] is not None] if placer.searches else (),
        evaluations=run.evaluations,
        seconds=run.seconds,
    )
