"""``placeto report``, and the page as a browser shows it."""

import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import ConsoleMessage, Page, sync_playwright

from command_runs import build_profile, succeed, succeed_json
from placeto_graphs import (
    Grouping,
    PlacementProblem,
    from_networkx,
    parse_cluster,
    save_problem,
)
from placeto_tools.reports.page import embedded_json

NAMES = ("chromium", "chromium-browser", "google-chrome")
PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin"])  # a sandbox may have no PATH
BROWSER = next(filter(None, (shutil.which(name, path=PLACES) for name in NAMES)), None)
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH or in /usr/bin")
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
HOSTILE = (
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 2</script>",
    '<img src="x" onerror="window.ran = 3">',
    "<!-- %%DATA%% @{name}{safe} &lt;",
)


@dataclass
class Tab:
    """A tab of a browser: its page, what went wrong there, and what it requested."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: Path) -> None:
        self.page.goto(path.resolve().as_uri())
        self.settle()

    def settle(self) -> None:
        self.page.wait_for_selector("body[data-drawn=yes]")
        self.page.wait_for_timeout(100)  # milliseconds
        self.page.evaluate(PAINTED)

    def picture(self, place: str) -> NDArray[np.uint8]:
        """Return what a place shows, in many colours."""
        shot = self.page.locator(place).screenshot()
        picture = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))
        assert len(np.unique(picture @ np.array([1 << 16, 1 << 8, 1]))) > 20, place
        return picture


@pytest.fixture
def tab() -> Iterator[Tab]:
    assert BROWSER is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        result = Tab(page)

        def log(message: ConsoleMessage) -> None:
            result.errors += [message.text] if message.type in ("error", "warning") else []

        page.on("console", log)
        page.on("pageerror", lambda error: result.errors.append(str(error)))
        page.on("dialog", lambda dialog: result.errors.append(dialog.message))
        page.on("request", lambda request: result.requests.append(request.url))
        yield result
        browser.close()


def hostile_problem(folder: Path) -> PlacementProblem:
    """Save a chain of ops whose names would run, or end what they stand in."""
    chain = nx.DiGraph()
    for name in HOSTILE:
        chain.add_node(name, op_type=name, scope=name)
    nx.add_path(chain, HOSTILE, bytes=1_000)
    graph = from_networkx(chain)
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("2xk80"), compute_time=np.full((len(HOSTILE), 2), 0.25)
    )
    save_problem(problem, folder / "hostile.json")
    return problem


def data_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what a page holds as data."""
    text = path.read_text().split('<script type="application/json" id="data">')[1]
    document: dict[str, list[dict[str, Any]]] = json.loads(text.split("</script>")[0])
    return document


def test_bounds_hold_for_the_groups_that_they_name(tmp_path: Path) -> None:
    """Two ops of a second each, in one group: also in two, as the search places them."""
    alone, together = (
        Grouping(group_of=np.array(group_of, np.int32), group_names=names)
        for group_of, names in (([0, 1], ("a", "b")), ([0, 0], ("both",)))
    )
    problem = PlacementProblem(
        graph=from_networkx(nx.empty_graph(2, create_using=nx.DiGraph)),
        cluster=parse_cluster("2xk80"),
        compute_time=np.ones((2, 2)),
        grouping=together,
        hierarchy=(together, alone),
    )
    path, placement = tmp_path / "problem.json", tmp_path / "placement.json"
    save_problem(problem, path)
    placed = succeed_json("place", path, "--max-evaluations=2000", "-o", placement)
    inspected = succeed_json("inspect", path)
    in_one = succeed_json("inspect", path, "--groups=1")
    assert placed["groups"] == inspected["searched_groups"] > 1 == in_one["searched_groups"]
    assert inspected["lower_bound"] <= placed["runtime"] < in_one["lower_bound"]
    for placements, num_groups in (([], 1), ([placement], placed["groups"])):
        page = tmp_path / f"{num_groups}.html"
        succeed("report", path, "k80:0", *placements, "-o", page)
        (report,) = data_of(page)["problems"]
        assert report["bounded_groups"] == num_groups
        assert max(report["bounds"].values()) <= min(p["runtime"] for p in report["placers"])


def test_names_cannot_end_the_element_that_holds_them(tmp_path: Path) -> None:
    problem = hostile_problem(tmp_path)
    succeed("report", tmp_path / "hostile.json", "k80:0", "-o", tmp_path / "report.html")
    (embedded,) = data_of(tmp_path / "report.html")["problems"]
    assert embedded["op_names"] == list(problem.graph.op_names)
    assert "window.ran" in (tmp_path / "report.html").read_text()
    for name in HOSTILE[:3]:
        assert name not in (tmp_path / "report.html").read_text()
    assert json.loads(embedded_json(HOSTILE)) == list(HOSTILE)


def test_each_placer_of_a_comparison_has_a_curve(tmp_path: Path) -> None:
    problem = build_profile(tmp_path)
    placers = ["--placers=single,heft,random", "--max-evaluations=30"]
    succeed("compare", problem, *placers, "-o", tmp_path / "results")
    (report,) = data_of(tmp_path / "results" / "report.html")["problems"]
    ends = {placer["title"]: placer["curve"][-1] for placer in report["placers"]}
    assert [ends[title][0] for title in ("HEFT", "Random")] == [1, 30]
    assert {title: end[1] for title, end in ends.items()} == {
        placer["title"]: placer["runtime"] for placer in report["placers"]
    }


@pytest.mark.slow
@in_a_browser
def test_names_do_not_run_on_the_page_of_a_comparison(tmp_path: Path, tab: Tab) -> None:
    hostile_problem(tmp_path)
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    placers = ["--placers=single,local-search", "--max-evaluations=60"]
    succeed("compare", tmp_path / "hostile.json", *placers, "-o", folder)
    tab.open(folder / "report.html")
    tips: set[str] = set()
    box = tab.page.locator("#graph").bounding_box()
    assert box is not None
    for x in range(20, int(box["width"]) - 40, 5):  # over the nodes of a chain
        tab.page.mouse.move(box["x"] + x, box["y"] + 0.475 * box["height"])
        tab.page.wait_for_timeout(20)
        tips |= set(tab.page.locator(".bk-tooltip-content").all_inner_texts())
        if all(any(hostile in tip for tip in tips) for hostile in HOSTILE):
            break
    tab.page.locator("#search").fill(HOSTILE[0])
    tab.settle()
    for hostile in HOSTILE:
        assert any(hostile in tip for tip in tips)
    assert tab.page.evaluate("window.ran") is None
    assert tab.page.locator("img[src=x]").count() == 0
    assert tab.page.locator("#placers tr").count() == 1 + 2
    chosen = tab.page.locator("#graph-placer option:checked").inner_text()
    assert chosen in tab.page.locator("#verdict").inner_text()
    tab.picture("#curves")
    assert tab.errors == []


def test_times_are_the_simulators(tmp_path: Path) -> None:
    problem = build_profile(tmp_path)
    succeed("report", problem, "v100:0", "expert", "-o", tmp_path / "report.html")
    (embedded,) = data_of(tmp_path / "report.html")["problems"]
    placers = embedded["placers"]
    assert isinstance(placers, list)
    for placer, name in zip(placers, ("v100:0", "expert"), strict=True):
        expected = json.loads(succeed("simulate", problem, name, "--json"))
        assert placer["title"] == name
        assert placer["runtime"] == expected["runtime"]
        assert len(placer["step"]["transfer_end"]) == expected["transfers"]
        busy = [device["busy"] * placer["runtime"] for device in expected["devices"]]
        assert placer["busy"] == pytest.approx(busy)
        assert np.add(placer["busy"], placer["waiting"]) == pytest.approx(placer["runtime"])
        assert max(placer["sending"]) <= placer["runtime"]
        path = expected["critical_path"]
        assert sum(placer["step"]["path_transfer_seconds"]) == pytest.approx(
            path["transfer_seconds"]
        )
        assert len(placer["step"]["path_ops"]) == path["ops"]
        assert len(placer["step"]["path_transfers"]) == path["transfers"]
        assert max(placer["step"]["op_end"]) == pytest.approx(expected["runtime"], rel=1e-6)


# What Bokeh holds of the plots in a place: of the graph its groups, of the steps their bars.
GROUPS = """() => {
  const [graph] = Bokeh.documents.flatMap(held => held.roots()).filter(root => root.renderers);
  return graph.renderers[1].data_source;
}"""
BARS = """() => {
  const [steps] = Bokeh.documents.flatMap(held => held.roots()).filter(root => root.children);
  const {x_range, renderers: [bars]} = steps.children[0];
  const {left, what} = bars.data_source.data;
  return {start: x_range.start, end: x_range.end, left: [...left], what: [...what]};
}"""


def bars_in_view(placer: dict[str, Any], start: float, end: float) -> int:
    step = placer["step"]
    begins = np.array([*step["op_start"], *step["transfer_start"]])
    ends = np.array([*step["op_end"], *step["transfer_end"]])
    return int(((ends >= start) & (begins <= end)).sum())


def bars_that_are_told_of(tips: list[str]) -> int:
    matches = (re.search(r" and ([\d,]+) more (?:ops|transfers)$", text) for text in tips)
    return sum(1 + (int(match[1].replace(",", "")) if match else 0) for match in matches)


@pytest.mark.slow
@in_a_browser
def test_many_ops_are_drawn_as_few_bars_and_groups_open_down_to_the_finest(
    tmp_path: Path, tab: Tab
) -> None:
    problem = build_profile(tmp_path, num_layers=700)
    succeed("report", problem, "expert", "scotch", "-o", tmp_path / "report.html")
    tab.open(tmp_path / "report.html")
    (data,) = data_of(tmp_path / "report.html")["problems"]
    levels = data["levels"]
    placer = min(
        data["placers"], key=lambda placer: (not placer["fits"], placer["cost"])
    )  # the upper one
    upper, lower = (tab.page.locator(select).input_value() for select in ("#upper", "#lower"))
    assert data["placers"][int(upper)]["title"] == placer["title"]
    assert upper != lower

    pictures = []
    for name in ("expert", "scotch", placer["title"]):
        for select in ("#graph-placer", "#upper", "#lower"):
            tab.page.select_option(select, label=name)
        tab.settle()
        assert name in tab.page.locator("#path-summary").inner_text()
        pictures.append(tab.picture("#graph"))
        tab.picture("#steps")
    assert (pictures[0] != pictures[1]).any()
    overview = tab.page.evaluate(BARS)
    assert bars_that_are_told_of(overview["what"]) == bars_in_view(placer, 0, overview["end"])
    assert len(overview["what"]) < bars_in_view(placer, 0, overview["end"]) / 1.2
    tab.page.locator("#steps").scroll_into_view_if_needed()
    box = tab.page.locator("#steps").bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 80)
    for _ in range(12):
        tab.page.mouse.wheel(0, -400)
    tab.settle()
    near = tab.page.evaluate(BARS)
    assert near["end"] - near["start"] < 0.2 * (overview["end"] - overview["start"])
    inside = bars_in_view(placer, near["start"], near["end"])
    assert bars_that_are_told_of(near["what"]) == inside == len(near["what"]) > 0

    names = levels[0]["names"]
    for level, finer in enumerate(levels[1:], start=1):
        group = levels[level - 1]["names"].index(names[-1])
        tab.page.evaluate(f"() => {{ ({GROUPS})().selected.indices = [{len(names) - 1}] }}")
        tab.settle()
        assert tab.page.locator("#level").input_value() == str(level)
        names = tab.page.evaluate(f"() => [...({GROUPS})().data.name]")
        parents = np.array(finer["parents"])
        assert names == [finer["names"][child] for child in np.flatnonzero(parents == group)]
    assert tab.page.evaluate("() => Bokeh.documents.length") == 2  # of the graph, of the steps
    tab.page.locator("#out").click()
    assert tab.page.locator("#level").input_value() == str(len(levels) - 2)
    tab.page.select_option("#level", index=0)
    tab.settle()
    legend = re.findall(r"([\d,]+) groups", tab.page.locator("#legend").inner_text())
    assert sum(map(int, legend)) == len(levels[0]["names"])
    tab.page.locator("#search").fill("node7")
    tab.settle()
    assert "of" in tab.page.locator("#found").inner_text()
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []
