"""Placers and evaluators of a user's own, in `compare`, `place` and `placeto.place`."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import placeto
from command_runs import fail, invoke, succeed, succeed_json, write_module
from placeto.errors import InputError
from placeto.placing import watching
from placeto.placing.evaluators import evaluator_spec
from placeto.placing.own import CheckedPlacer, checked_evaluator
from placeto.placing.placers import Budget, placer_spec
from placeto.trials.placing_tasks import PlaceByName
from placeto.trials.store import files_digest, imports_digest
from placeto.trials.trials import Graph, StoppedError, Watch, Workspace
from placeto_graphs import (
    DEVICE_KINDS,
    EvaluationBatch,
    PlacementProblem,
    PlacementResult,
    from_networkx,
    load_placement,
    load_problem,
    parse_cluster,
    save_problem,
)
from placeto_simulator import Simulator

MODULE = '''
import numpy as np
from placeto_graphs import EvaluationBatch, PlacementResult, plain_walk


def result_of(placement, evaluator):
    placement = np.asarray(placement, np.int32)
    found = evaluator.evaluate(placement[None])
    return PlacementResult(
        placement=placement, runtime=found.runtime[0], peak_memory=found.peak_memory[0],
        evaluations=1, seconds=0.0, curve=[[1, found.runtime[0]]],
    )


class Spread:
    """Deals groups to as many devices as it is told."""

    name = "spread"

    def __init__(self, width=2):
        self.width = width

    def place(self, problem, evaluator, *, seed=0):
        return result_of(np.arange(problem.num_groups) % self.width, evaluator)


class Endless(Spread):
    """Evaluates until it is stopped, and takes no notice of errors."""

    def place(self, problem, evaluator, *, seed=0):
        generator = np.random.default_rng(seed)
        while True:
            try:
                evaluator.evaluate(generator.integers(0, 2, (7, problem.num_groups), np.int32))
            except Exception:
                pass


class Limited(Spread):
    """Heeds its limits: evaluates one placement less than it may."""

    def __init__(self, max_evaluations, seconds=None):
        self.evaluations = max_evaluations - 1

    def place(self, problem, evaluator, *, seed=0):
        for _ in range(self.evaluations - 1):
            evaluator.evaluate(np.zeros((1, problem.num_groups), np.int32))
        found = result_of(np.zeros(problem.num_groups), evaluator)
        return PlacementResult(
            placement=found.placement, runtime=found.runtime, peak_memory=found.peak_memory,
            evaluations=self.evaluations, seconds=0.0, curve=[[self.evaluations, found.runtime]],
        )


class Walker(Spread):
    """Tries more moves in one call than it may."""

    def place(self, problem, evaluator, *, seed=0):
        from placeto_graphs import Moves

        count = 100
        moves = Moves(
            set_of=np.arange(count)[None] % problem.num_groups,
            device=np.arange(count)[None] // problem.num_groups % 2,
            allowance=np.full((1, count), 9.0),
            first_member=np.arange(problem.num_groups + 1), members=np.arange(problem.num_groups),
        )
        evaluator.walk(np.ones((1, problem.num_groups), np.int32), moves)


class Boasts(Spread):
    def place(self, problem, evaluator, *, seed=0):
        for _ in range(5):
            evaluator.evaluate(np.ones((2, problem.num_groups), np.int32))
        return PlacementResult(
            placement=np.zeros(problem.num_groups, np.int32), runtime=1e-9, peak_memory=[0, 0],
            evaluations=1, seconds=0.0, curve=[[1, 1e-9]],
        )


class MaxLoad:
    """The seconds of the busiest device, and nothing else."""

    objective = "largest load"

    def __init__(self, problem, factor=1.0):
        self.problem = problem
        self.factor = factor

    def evaluate(self, placements):
        seconds = self.problem.group_graph.compute_time
        here = placements[:, :, None] == np.arange(self.problem.num_devices)
        loads = self.factor * np.where(here, seconds, 0.0).sum(axis=1)
        return EvaluationBatch(
            runtime=loads.max(axis=1, initial=0.0), peak_memory=np.zeros(loads.shape, np.int64)
        )


class Walking(MaxLoad):
    objective, unit = "cost", "$"

    def walk(self, placements, moves):
        return plain_walk(self, placements, moves)


class NoPlace:
    name = "no-place"
    place = None


class NoEvaluate(MaxLoad):
    evaluate = None


class FailsWithASeed(Spread):
    def place(self, problem, evaluator, *, seed=0):
        if seed:
            raise KeyError("seed")
        return super().place(problem, evaluator)


class Fails(Spread):
    def place(self, problem, evaluator, *, seed=0):
        raise KeyError("no such  group")


class Breaks(MaxLoad):
    def evaluate(self, placements):
        return 1 / 0


class OfFewGroups(MaxLoad):
    def __init__(self, problem):
        super().__init__(problem)
        if problem.num_groups > 4:
            raise ValueError("expected few groups")
'''


def independent_ops(*seconds: float) -> PlacementProblem:
    """Return ops without tensors on two devices, each a group: a step is the busiest device."""
    ops = nx.DiGraph()
    ops.add_nodes_from(f"op{number}" for number in range(len(seconds)))
    graph = from_networkx(ops)
    times = np.array(seconds)
    return PlacementProblem(
        graph=graph, cluster=parse_cluster("2xv100"), compute_time=np.stack([times, times], axis=1)
    )


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module in the current folder, beside two problems."""
    save_problem(independent_ops(4.0, 3.0, 2.0, 1.0), tmp_path / "uneven.json")
    save_problem(independent_ops(2.0, 2.0, 2.0, 2.0), tmp_path / "even.json")
    return write_module(tmp_path, monkeypatch, MODULE)


def test_a_placer_and_an_evaluator_of_ones_own_have_rows_in_the_table(own: str) -> None:
    placers = f"--placers=single,local-search,multilevel,{own}:Spread,{own}:Spread:width=[1]"
    compare = ["compare", "uneven.json", "even.json", placers, "--max-evaluations=200"]
    report = succeed_json(*compare, f"--objective={own}:MaxLoad:factor=2")
    told = {(problem["objective"], problem["unit"]) for problem in report["problems"]}
    assert told == {("largest load", "s")}
    runtimes = {
        placer["name"]: [
            one["runs"][0]["runtime"]
            for problem in report["problems"]
            for one in problem["placers"]
            if one["name"] == placer["name"]
        ]
        for placer in report["problems"][0]["placers"]
    }
    assert runtimes == {  # twice the seconds of the busiest device; 4 + 1 and 3 + 2 are the best
        "single": [20.0, 16.0],
        "multilevel": [10.0, 8.0],
        "local-search": [10.0, 8.0],
        f"{own}:Spread": [12.0, 8.0],
        f"{own}:Spread:width=[1]": [20.0, 16.0],
    }
    profiles = {one["name"]: one for one in report["profiles"]}
    spread = profiles[f"{own}:Spread"]
    assert spread["ratios"] == [1.2, 1.0]
    assert spread["mean_ratio"] == pytest.approx(1.2**0.5)
    assert list(spread["within"].values()) == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]
    assert profiles["single"]["ratios"] == [2.0, 2.0]
    assert set(profiles["single"]["within"].values()) == {0.0}
    text = succeed(*compare, f"--objective={own}:MaxLoad:factor=2", "-o", "results")
    assert "lower bound" not in text
    assert "no report.html: it shows when ops run" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(f"{own}:Spread ")]
    assert rows[0][1:3] == ["1.095", "50.0"]
    assert [row[1:4] for row in rows[1:]] == [["12.00", "s", "1.200"], ["8.000", "s", "1.000"]]
    placed = Path("results/placements/uneven-2xv100", f"{own}:Spread.json")
    assert load_placement(placed, load_problem("uneven.json")).tolist() == [0, 1, 0, 1]


def test_a_unit_of_ones_own_stands_in_tables(own: str) -> None:
    compare = ["compare", "uneven.json", f"--objective={own}:Walking", "--max-evaluations=100"]
    text = succeed(*compare, "--placers=multilevel,local-search")
    (head,) = (line for line in text.splitlines() if line.startswith("placer"))
    assert head.split()[1] == "cost"
    assert text.count(" 5 $ ") == 2
    printed = succeed("place", "uneven.json", "--max-evaluations=100", compare[2], "-o", "p.json")
    assert printed.startswith("p.json: multilevel, cost 5 $;")
    assert sorted(load_placement("p.json", load_problem("uneven.json")).tolist()) == [0, 0, 1, 1]


def test_throughput_is_compared_and_searched_for(own: str) -> None:
    report = succeed_json(
        "compare", "uneven.json", "--placers=single,heft,multilevel", "--objective=throughput"
    )
    (problem,) = report["problems"]
    best = {one["name"]: [run["runtime"] for run in one["runs"]] for one in problem["placers"]}
    # HEFT takes the largest first: 4 | 3 + 2, then 4 + 1; after each op a V100 rests.
    rest = DEVICE_KINDS["v100"].op_overhead
    halves = pytest.approx([5 + 2 * rest], rel=1e-12)
    assert best == {
        "single": pytest.approx([10 + 4 * rest], rel=1e-12),
        "heft": halves,
        "multilevel": halves,
    }
    assert report["problems"][0]["objective"] == "time per sample"
    place = ["place", "uneven.json", "--objective=throughput", "-o", "placement.json"]
    found = succeed_json(*place, "--max-evaluations=100")
    assert found["placer"] == "multilevel"
    assert [found["runtime"]] == halves
    assert found["objective"] == "time per sample"
    assert "lower_bound" not in found
    assert "--start pretrained: excludes --objective" in fail(
        *place, "--force", "--start=pretrained"
    )
    failed = invoke("compare", "uneven.json", "--placers=placeto", "--objective=throughput")
    assert failed.exit_code == 1
    assert "(a SchedulingEvaluator)" in failed.stderr.splitlines()[-1]
    assert own


def test_every_placer_ends_at_the_limits(own: str) -> None:
    chosen = ",".join(f"{own}:{name}" for name in ("Endless", "Limited", "Walker"))
    compare = ["compare", "uneven.json", f"--placers={chosen},random"]
    (problem,) = succeed_json(*compare, "--max-evaluations=50")["problems"]
    runs = {one["title"]: one["runs"][0] for one in problem["placers"]}
    assert {title: run["evaluations"] for title, run in runs.items()} == {
        "Random": 50,
        f"{own}:Endless": 50,
        f"{own}:Limited": 49,
        # Of 49 moves after the start a quarter take a group to where it is.
        f"{own}:Walker": runs[f"{own}:Walker"]["evaluations"],
    }
    assert 20 <= runs[f"{own}:Walker"]["evaluations"] <= 50
    assert runs[f"{own}:Endless"]["runtime"] == runs["Random"]["runtime"]
    assert runs["Random"]["runtime"] == pytest.approx(5.0, rel=1e-5)  # and the overheads of ops
    for run in runs.values():
        assert run["curve"][-1][0] == run["evaluations"]


def test_seconds_end_every_placer_and_searches_use_them_all(own: str) -> None:
    # Hundreds of groups, so that no search tries everything or meets the bound.
    times = 1 + np.random.default_rng(0).random(300)
    save_problem(independent_ops(*times.tolist()), "many.json")
    compare = ["compare", "many.json", f"--placers=random,local-search,multilevel,{own}:Endless"]
    succeed(*compare, "--seconds=0.01")  # code for levels is compiled once on a machine
    (problem,) = succeed_json(*compare, "--seconds=0.25")["problems"]
    for placer in problem["placers"]:
        (run,) = placer["runs"]
        at_the_bound = run["runtime"] <= problem["lower_bound"] * 1.001
        assert 0.24 <= run["seconds"] < 1.0 or at_the_bound, placer["name"]
        assert run["runtime"] >= problem["lower_bound"]
    assert "excludes --max-evaluations" in fail(*compare, "--seconds=1", "--max-evaluations=9")
    assert "--seconds: needs one of" in fail(
        "compare", "many.json", "--placers=heft", "--seconds=1"
    )
    place = ["place", "many.json", f"--placer={own}:Endless", "--seconds=0.1", "-o", "p.json"]
    assert succeed_json(*place)["evaluations"] > 7


def test_costs_are_those_of_the_evaluator_whatever_a_placer_says(own: str) -> None:
    place = ["place", "uneven.json", f"--placer={own}:Boasts", "-o", "placement.json"]
    found = succeed_json(*place)
    assert found["runtime"] == pytest.approx(10.0, rel=1e-5)
    assert found["evaluations"] == 10
    report = succeed_json("compare", "uneven.json", f"--placers={own}:Boasts,{own}:Spread")
    boasts, spread = (one["runs"][0] for one in report["problems"][0]["placers"])
    assert (boasts["evaluations"], spread["evaluations"]) == (10, 1)
    assert [point[0] for point in boasts["curve"]] == [1, 10]
    assert boasts["curve"][-1][1] == boasts["runtime"] == found["runtime"]
    # 4 + 2 seconds on one device, 3 + 1 on the other.
    simulated = succeed_json("simulate", "uneven.json", f"{own}:Spread")["runtime"]
    assert simulated == pytest.approx(6.0, rel=1e-5)


class Returns:
    """A placer and an evaluator that find what they are made with, or raise it."""

    name = "own"

    def __init__(self, problem: PlacementProblem, found: Any) -> None:
        self.problem, self.found = problem, found

    def evaluate(self, *_: object, **__: object) -> Any:
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found

    place = evaluate

    def walk(self, *_: object) -> Any:
        return self.found


def placed_on(*devices: int) -> PlacementResult:
    return PlacementResult(
        placement=np.array(devices, np.int32),
        runtime=1.0,
        peak_memory=np.array([0, 0]),
        evaluations=1,
        seconds=0.0,
        curve=np.array([[1, 1.0]]),
    )


WRONG_PLACERS = {
    "no_such_module:P": "expected a module that can be imported, got ModuleNotFoundError",
    "OWN:Missing": "expected OWN to have 'Missing'",
    "OWN:np.pi": "expected something that can be called",
    "OWN:Spread:depth=3": "OWN:Spread:depth=3: TypeError: Spread.__init__() got an unexpected",
    "OWN:Spread:width=1:width=2": "OWN:Spread:width=1:width=2: width: expected it once, got it",
    "OWN:NoPlace": "OWN:NoPlace: expected a placer, got one without 'place'",
    "OWN:Limited": "missing 1 required positional argument: 'max_evaluations'",
    "heft:depth=3": "heft:depth=3: expected no arguments of heft; its class takes them",
    "hefty": "expected heft, or another of",
}
WRONG_EVALUATORS = {
    "no_such_module:E": "expected a module that can be imported",
    "OWN:MaxLoad:power=2": "MaxLoad.__init__() got an unexpected keyword argument 'power'",
    "OWN:NoEvaluate": "expected an evaluator, got one without 'evaluate'",
    "latencies": "expected latency, or another of latency, throughput",
}
WRONG_RESULTS: list[tuple[Any, str]] = [
    (None, "own: expected place to return a PlacementResult, got NoneType"),
    (placed_on(0), "own: placement: expected shape (4,), got (1,)"),
    (placed_on(0, 0, 0, 2), "own: placement[3]: expected an integer from 0 to 1, got 2"),
    (SystemExit(0), "own: SystemExit: 0"),
]
WRONG_COSTS: list[tuple[Any, str]] = [
    ([1.0], "own: expected evaluate to return EvaluationBatch, got list"),
    (
        EvaluationBatch(runtime=np.ones(1), peak_memory=np.zeros((1, 2), np.int64)),
        "own: expected costs of 2 placements on 2 devices, got peak_memory of shape (1, 2)",
    ),
    (ZeroDivisionError("division by zero"), "own: ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize("text", WRONG_PLACERS)
def test_a_wrong_placer_is_said(text: str, own: str) -> None:
    name, expected = (one.replace("OWN", own) for one in (text, WRONG_PLACERS[text]))
    with pytest.raises(InputError, match=re.escape(expected)):
        placer_spec(name).make(load_problem("uneven.json"), Budget(0))


@pytest.mark.parametrize("text", WRONG_EVALUATORS)
def test_a_wrong_evaluator_is_said(text: str, own: str) -> None:
    with pytest.raises(InputError, match=re.escape(WRONG_EVALUATORS[text])):
        evaluator_spec(text.replace("OWN", own)).make(load_problem("uneven.json"), None)


def test_a_wrong_result_is_said() -> None:
    problem = independent_ops(4.0, 3.0, 2.0, 1.0)
    evaluator = Simulator(problem)
    for found, expected in WRONG_RESULTS:
        with pytest.raises(InputError, match=re.escape(expected)):
            CheckedPlacer("own", Returns(problem, found)).place(problem, evaluator)
    placements = np.zeros((2, 4), np.int32)
    for found, expected in WRONG_COSTS:
        with pytest.raises(InputError, match=re.escape(expected)):
            checked_evaluator("own", Returns(problem, found), problem).evaluate(placements)
    walker: Any = checked_evaluator("own", Returns(problem, None), problem)
    with pytest.raises(InputError, match="own: expected walk to return Walks, got NoneType"):
        walker.walk(placements)
    with pytest.raises(InputError, match="expected an evaluator of the problem that it is made"):
        checked_evaluator("own", Returns(problem, None), independent_ops(1.0))


def test_what_fails_is_one_line_and_the_others_go_on(own: str) -> None:
    place = ["place", "uneven.json", "-o", "placement.json"]
    assert "expected heft, or another of" in fail(*place, "--placer=hefty")
    assert "expected heft, or another of" in fail(
        "compare", "uneven.json", "--placers=single,hefty"
    )
    broken = f"{own}:Breaks: ZeroDivisionError: division by zero ({own}.py, line "
    for placer in ([], ["--placer=heft"], [f"--placer={own}:Spread"]):
        assert broken in fail(*place, *placer, f"--objective={own}:Breaks")
    expected = f"{own}:Fails: KeyError: 'no such group' ({own}.py, line "
    assert f"placeto: error: {expected}" in fail(*place, f"--placer={own}:Fails")
    assert (
        'raise KeyError("no such  group")'
        in invoke(*place, f"--placer={own}:Fails", "--debug").stderr
    )
    result = invoke("compare", "uneven.json", f"--placers=single,{own}:Fails")
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"placeto: error: uneven on 2xv100, {expected}")
    assert last.count(f"{own}:Fails") == 1
    assert "Single GPU" in result.stdout


def test_an_evaluator_that_refuses_a_problem_fails_on_that_one(own: str) -> None:
    save_problem(independent_ops(*range(1, 14)), "many.json")
    compare = ["compare", "--placers=heft", f"--objective={own}:OfFewGroups"]
    refused = f"{own}:OfFewGroups: ValueError: expected few groups ("
    result = invoke(*compare, "many.json", "uneven.json", "--json")
    assert result.exit_code == 1
    many, uneven = json.loads(result.stdout)["problems"]
    assert refused in json.dumps(many)
    assert refused not in json.dumps(uneven)
    of_none = invoke(*compare, "many.json")
    assert of_none.exit_code == 2
    assert of_none.stderr.startswith(f"placeto: error: {refused}")
    assert of_none.stdout == ""


def test_what_fails_with_one_seed_is_no_median_of_the_others(own: str) -> None:
    result = invoke("compare", "uneven.json", f"--placers={own}:FailsWithASeed", "--seeds=2")
    assert result.exit_code == 1
    (row,) = (line for line in result.stdout.splitlines() if line.startswith(f"{own}:Fails"))
    assert row.split()[1:] == ["6.000", "s", "1", "of", "2", "failed", *row.split()[7:]]
    report = json.loads(
        invoke(
            "compare", "uneven.json", f"--placers={own}:FailsWithASeed", "--seeds=2", "--json"
        ).stdout
    )
    assert report["profiles"][0]["ratios"] == [None]
    assert report["problems"][0]["placers"][0]["failed"] == 1


@pytest.mark.slow
def test_other_processes_come_to_the_same_and_find_what_is_ones_own(own: str) -> None:
    placers = f"--placers=heft,random,local-search,{own}:Spread,{own}:Fails"
    compare = ["compare", "uneven.json", "even.json", placers, "--max-evaluations=50"]
    results = [
        invoke(*compare, f"--objective={own}:MaxLoad", f"--jobs={jobs}", "--json")
        for jobs in (1, 2)
    ]
    reports = [json.loads(result.stdout)["problems"] for result in results]
    for result, problems in zip(results, reports, strict=True):
        assert "KeyError: 'no such group'" in result.stderr.splitlines()[-1]
        runs = [run for one in problems for found in one["placers"] for run in found["runs"]]
        assert len(runs) == 2 * 4
        for run in runs:
            del run["seconds"]
    assert reports[0] == reports[1]


def test_an_edit_of_a_placer_or_of_what_it_imports_runs_it_anew(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trials() -> list[dict[str, object]]:
        placers = f"--placers=heft,{own}:Spread"
        for name in [name for name in sys.modules if name.startswith(own)]:
            monkeypatch.delitem(sys.modules, name)
        files_digest.cache_clear()  # each command is a process of its own
        imports_digest.cache_clear()
        succeed("compare", "uneven.json", placers, "-o", "results")
        return [json.loads(line) for line in Path("results/trials.jsonl").read_text().splitlines()]

    first = trials()
    assert [one["placement"] for one in first[1:]] == [[0, 1, 1, 0], [0, 1, 0, 1]]
    assert trials() == first
    file = tmp_path / f"{own}.py"
    file.write_text(file.read_text().replace("% self.width", "// self.width"))
    *same, new = trials()
    assert same == first
    assert new["placement"] == [0, 0, 1, 1]
    # A package beside it, which it imports when it is called, and which has parts of its own.
    package = tmp_path / f"{own}_parts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "turns.py").write_text("from .sizes import WIDTH\n")
    (package / "sizes.py").write_text("WIDTH = 4\n")
    imports = f"        from {own}_parts import turns\n        self.width = turns.WIDTH\n"
    file.write_text(file.read_text().replace("        self.width = width\n", imports, 1))
    assert trials()[-1]["placement"] == [0, 0, 0, 0]
    (package / "other.py").write_text("WIDTH = 3\n")
    count = len(trials())
    (package / "sizes.py").write_text("WIDTH = 1 + 1\n")
    *before, last = trials()
    assert len(before) == count
    assert last["placement"] == [0, 0, 1, 1]


@pytest.fixture
def plugin(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the module of a package that is installed, and names what it has."""
    described = tmp_path / "own-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 0\n")
    (described / "entry_points.txt").write_text(
        f"[placeto.placers]\nspread = {own}:Spread\n"
        f"[placeto.evaluators]\nmax-load = {own}:MaxLoad\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return own


def test_an_installed_package_gives_its_placers_names(plugin: str) -> None:
    compare = ["compare", "uneven.json", "--objective=max-load:factor=3"]
    report = succeed_json(*compare, "--placers=spread:width=1,spread,heft")
    placers = report["problems"][0]["placers"]
    assert [one["name"] for one in placers] == ["heft", "spread:width=1", "spread"]
    assert [one["runs"][0]["runtime"] for one in placers] == [15.0, 30.0, 18.0]
    assert "expected spread, or another of" in fail(*compare, "--placers=spred")
    assert placer_spec("spread").modules == (plugin,)


def test_python_takes_placers_and_evaluators(own: str) -> None:
    module = __import__(own)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    arguments = (model, torch.ones(4, 8))
    for placer in (module.Spread(1), f"{own}:Spread:width=1"):
        placed = placeto.place(*arguments, cluster="2xv100", placer=placer, quiet=True)
        assert set(placed.placement.tolist()) == {0}
        assert placed.lower_bound <= placed.runtime
    for evaluator in (module.MaxLoad, f"{own}:MaxLoad"):
        placed = placeto.place(
            *arguments, cluster="2xv100", evaluator=evaluator, seconds=0.2, quiet=True
        )
        loads = np.zeros(2)
        seconds = placed.problem.group_graph.compute_time[:, 0]
        np.add.at(loads, placed.placement, seconds)
        assert placed.runtime == pytest.approx(loads.max())
        assert placed.runtime == pytest.approx(seconds.max())  # of three, of which one takes none
        assert placed.lower_bound == 0
    with pytest.raises(InputError, match="expected a placer, got one without 'place'"):
        placeto.place(*arguments, cluster="2xv100", placer=module.NoPlace(), quiet=True)
    with pytest.raises(InputError, match="placer: expected heft, or another of"):
        placeto.place(*arguments, cluster="2xv100", placer="hefty", quiet=True)


@pytest.mark.parametrize("name", ["local-search", "multilevel", "random", "OWN:Endless"])
def test_a_search_that_is_stopped_did_not_fail(
    name: str, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "SECONDS_BETWEEN_REPORTS", 0.0)
    Path("problems").mkdir()
    times = np.random.default_rng(0).random(40).tolist()
    save_problem(independent_ops(*times), "problems/ops.json.gz")
    looks = iter([False] * 6)  # two before it begins
    watch = Watch(lambda: next(looks, True))
    placer = name.replace("OWN", own)
    task = PlaceByName(label=placer, graph=Graph("ops"), seed=0, name=placer, budget=10_000)
    with pytest.raises(StoppedError):
        task.run(Workspace(Path()), watch)
