"""Files of a comparison besides its tables: the best placements, and a page that shows them."""

import shutil
from urllib.parse import quote

import numpy as np

from placeto.errors import writing
from placeto.outputs import write_text
from placeto.trials.comparing import Comparison
from placeto.trials.comparison import CPU
from placeto.trials.folder import ExperimentFolder
from placeto.trials.trials import Graph
from placeto_baselines import bound_parts
from placeto_graphs import save_placement
from placeto_tools.reports.page import Shown, problem_report, report_page

REPORT = "report.html"
IN_FILES = ":=+,"  # besides letters and digits


def write_best(comparison: Comparison, folder: ExperimentFolder, *, page: bool) -> None:
    """Write the best, ``placements/PROBLEM/PLACER.json``, and with ``page`` a page of them."""
    placements, reports = folder.path / "placements", []
    with writing(folder.path):  # those of earlier problems, or of fewer placers
        (folder.path / REPORT).unlink(missing_ok=True)
        for compared in comparison.problems:
            shutil.rmtree(placements / compared.stem, ignore_errors=True)
    for compared in comparison.reports(folder.results):
        problem = folder.workspace.problem(Graph(compared.stem))
        shown = []
        for placer in compared.placers:
            best = placer.best
            if best is None or (placer.name == CPU and not compared.has_cpu):
                continue  # that is a placement of another problem
            found = Shown(
                title=placer.title,
                problem=problem,
                placement=np.array(best.placement, np.int32),
                curve=[row for row in best.curve if row[1] is not None] if placer.searches else (),
                evaluations=best.evaluations,
                seconds=best.seconds,
            )
            shown.append(found)
            file = placements / compared.stem / f"{quote(placer.name, IN_FILES)}.json"
            with writing(file.parent):
                file.parent.mkdir(parents=True, exist_ok=True)
                save_placement(found.placement, problem, file)
        if page and shown and comparison.evaluators[compared.evaluator].simulates:
            reports.append(problem_report(compared.title, problem, bound_parts(problem), shown))
    if reports:
        write_text(folder.path / REPORT, report_page("Comparison of placers", reports))
