"""Placers and evaluators of a user's own, in `compare`, `place` and `placeto.place`."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import placeto
from command_runs import fail, invoke, succeed, succeed_json, write_module
from placeto.errors import InputError
from placeto.placing.evaluators import evaluator_spec
from placeto.placing.own import checked_evaluator, checked_placer
from placeto.placing.placers import placer_spec
from placeto.trials.folder import files_digest, imports_digest
from placeto.trials.placing_tasks import PlaceByName
from placeto.trials.trials import Graph, StoppedError, Watch, Workspace
from placeto_baselines import Limits, placement_trials
from placeto_graphs import (
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
from placeto_graphs import EvaluationBatch, Moves, PlacementResult, plain_walk


class Spread:
    """Deals groups to as many devices as it is told."""

    name = "spread"

    def __init__(self, width=2):
        self.width = width

    def place(self, problem, evaluator, *, seed=0):
        placement = np.arange(problem.num_groups, dtype=np.int32) % self.width
        found = evaluator.evaluate(placement[None])
        return PlacementResult(
            placement=placement, runtime=found.runtime[0], peak_memory=found.peak_memory[0],
            evaluations=1, seconds=0.0, curve=[[1, found.runtime[0]]],
        )


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
    """Heeds its limit: evaluates one placement less than it may."""

    def __init__(self, max_evaluations):
        super().__init__()
        self.evaluations = max_evaluations - 1

    def place(self, problem, evaluator, *, seed=0):
        for _ in range(self.evaluations - 1):
            evaluator.evaluate(np.zeros((1, problem.num_groups), np.int32))
        return super().place(problem, evaluator)


class Walker(Spread):
    """Tries more moves in one call than it may."""

    def place(self, problem, evaluator, *, seed=0):
        tries, groups = np.arange(100)[None], np.arange(problem.num_groups + 1)
        moves = Moves(
            set_of=tries % problem.num_groups, device=tries // problem.num_groups % 2,
            allowance=np.full((1, 100), 9.0), first_member=groups, members=groups[:-1],
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


class Fails(Spread):
    def place(self, problem, evaluator, *, seed=0):
        raise KeyError("no such  group")


class FailsWithASeed(Fails):
    def place(self, problem, evaluator, *, seed=0):
        return (super() if seed else Spread()).place(problem, evaluator)


class MaxLoad:
    """The seconds of the busiest device, and nothing else."""

    objective, unit = "largest load", "$"

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

    def walk(self, placements, moves):
        return plain_walk(self, placements, moves)


class OfFewGroups(MaxLoad):
    def __init__(self, problem):
        super().__init__(problem)
        if problem.num_groups > 4:
            raise ValueError("expected few groups")
'''


def independent_ops(*seconds: float) -> PlacementProblem:
    """Return ops without tensors on two devices, each a group: a step is the busiest device."""
    ops = nx.DiGraph()
    ops.add_nodes_from(f"op{index}" for index in range(len(seconds)))
    graph = from_networkx(ops)
    times = np.array(seconds)
    return PlacementProblem(
        graph=graph, cluster=parse_cluster("2xv100"), compute_time=np.stack([times, times], axis=1)
    )


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module in the current folder, beside two problems."""
    save_problem(independent_ops(4.0, 3.0, 2.0, 1.0), tmp_path / "uneven.json")
    save_problem(independent_ops(2.0, 2.0, 2.0, 2.0), tmp_path / "even.json")
    return write_module(tmp_path, monkeypatch, MODULE)


def runs_of(problem: Any) -> dict[str, Any]:
    """Return the first run of each placer of a problem of a report."""
    return {placer["name"]: placer["runs"][0] for placer in problem["placers"]}


def test_a_placer_and_an_evaluator_of_ones_own_have_rows_in_the_table(module_name: str) -> None:
    spread = f"{module_name}:Spread"
    placers = f"--placers=single,local-search,multilevel,{spread},{spread}:width=[1]"
    compare = ["compare", "uneven.json", "even.json", placers, "--max-evaluations=200"]
    text = succeed(*compare, f"--objective={module_name}:MaxLoad:factor=2", "-o", "results")
    report = json.loads(Path("results/results.json").read_text())
    objectives = {(problem["objective"], problem["unit"]) for problem in report["problems"]}
    assert objectives == {("largest load", "$")}
    uneven, even = map(runs_of, report["problems"])
    # Twice the seconds of the busiest device; 4 + 1 and 3 + 2 are the best.
    assert {name: (run["runtime"], even[name]["runtime"]) for name, run in uneven.items()} == {
        "single": (20.0, 16.0),
        "multilevel": (10.0, 8.0),
        "local-search": (10.0, 8.0),
        spread: (12.0, 8.0),
        f"{spread}:width=[1]": (20.0, 16.0),
    }
    assert "lower bound" not in text
    assert "no report.html: it shows when ops run" in text
    placed = Path("results/placements/uneven-2xv100", f"{module_name}:Spread.json")
    assert load_placement(placed, load_problem("uneven.json")).tolist() == [0, 1, 0, 1]
    problems = {name: placeto.read_problem(f"{name}.json") for name in ("even", "uneven")}
    chosen = ["single", spread, f"{module_name}:Fails"]
    comparison = placeto.compare(
        problems, chosen, evaluator=f"{module_name}:MaxLoad:factor=2", quiet=True
    )
    costs = [
        [run.runtime for run in placer.runs]
        for problem in comparison.problems
        for placer in problem.placers
    ]
    assert costs == [[16.0], [8.0], [], [20.0], [12.0], []]
    for arguments, line in (
        ({"problems": list(problems.values())}, "problems: expected problems of `read_problem`"),
        ({"problems": problems["even"]}, "problems: .* by name, got PlacementProblem"),
        ({"problems": {"even": "even.json"}}, "problems: .* got str"),
        ({"problems": {}}, "problems: expected at least 1, got 0"),
        ({"placers": []}, "placers: expected at least 1, got 0"),
        ({"seeds": 0}, "seeds: expected at least 1, got 0"),
        ({"max_evaluations": 0}, "max_evaluations: expected at least 1, got 0"),
    ):
        all_arguments: dict[str, Any] = {"problems": problems, "placers": ["single"], **arguments}
        with pytest.raises(InputError, match=line):
            placeto.compare(**all_arguments)
    place = ["place", "uneven.json", "--max-evaluations=100", f"--objective={module_name}:MaxLoad"]
    assert succeed(*place, "-o", "p.json").startswith("p.json: multilevel, largest load 5 $;")


def test_every_placer_ends_at_the_limits_and_costs_what_the_evaluator_says(
    module_name: str,
) -> None:
    chosen = ",".join(
        f"{module_name}:{name}" for name in ("Endless", "Limited", "Walker", "Boasts")
    )
    compare = ["compare", "uneven.json", f"--placers={chosen},random"]
    (problem,) = succeed_json(*compare, "--max-evaluations=50")["problems"]
    runs = {name.rpartition(":")[2]: run for name, run in runs_of(problem).items()}
    counts = {name: run["evaluations"] for name, run in runs.items()}
    # Of 49 moves after the start a quarter take a group to where it is.
    assert 20 <= counts.pop("Walker") <= 50
    assert counts == {"random": 50, "Endless": 50, "Limited": 49, "Boasts": 10}
    assert runs["Endless"]["runtime"] == runs["random"]["runtime"]
    assert runs["random"]["runtime"] == pytest.approx(5.0, rel=1e-5)  # and the overheads of ops
    assert runs["Boasts"]["runtime"] == pytest.approx(10.0, rel=1e-5)
    for run in runs.values():
        assert run["curve"][-1] == [run["evaluations"], run["runtime"]]


class Returns:
    """A placer and an evaluator that answer with what they are made with, or raise it."""

    name = "own"

    def __init__(self, problem: PlacementProblem, answer: Any) -> None:
        self.problem, self.answer = problem, answer

    def evaluate(self, *_: object, **__: object) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    place = walk = evaluate


class Lacks:
    name, problem, place, evaluate = "own", None, None, None


def placed_on(*devices: int) -> PlacementResult:
    costs = {"runtime": 1.0, "peak_memory": [0, 0], "evaluations": 1, "seconds": 0.0}
    return PlacementResult(placement=np.array(devices), curve=[[1, 1.0]], **costs)  # type: ignore[arg-type]


PROBLEM = independent_ops(4.0, 3.0, 2.0, 1.0)
COSTS_OF_ONE = EvaluationBatch(runtime=np.ones(1), peak_memory=np.zeros((1, 2), np.int64))


def place_with(placer: Any) -> None:
    if isinstance(placer, str):
        placer_spec(placer).make(PROBLEM, Limits(), None)
    checked_placer("own", placer).place(PROBLEM, Simulator(PROBLEM))


def evaluate_with(evaluator_or_spec: Any) -> None:
    if isinstance(evaluator_or_spec, str):
        evaluator_spec(evaluator_or_spec).make(PROBLEM, None)
    evaluator: Any = checked_evaluator("own", evaluator_or_spec, PROBLEM)
    with pytest.raises(InputError, match=r"own: (expected \w+ to return Walks|ValueError)"):
        evaluator.walk(None)
    evaluator.evaluate(np.zeros((2, 4), np.int32))


@pytest.mark.parametrize(
    ("use", "plugin", "message"),
    [
        (place_with, "no_such_module:P", "expected a module that can be imported, got ModuleNot"),
        (place_with, "OWN:Missing", "expected OWN to have 'Missing'"),
        (place_with, "OWN:np.pi", "expected something that can be called"),
        (place_with, "OWN:Spread:depth=3", "OWN:Spread:depth=3: TypeError: Spread.__init__() got"),
        (place_with, "OWN:Spread:width=1:width=2", ":width=2: width: expected it once, got"),
        (place_with, "OWN:Limited", "missing 1 required positional argument: 'max_evaluations'"),
        (place_with, "heft:depth=3", "heft:depth=3: expected no arguments of heft; its class"),
        (place_with, Lacks(), "own: expected a placer, got one without 'place'"),
        (place_with, Returns(PROBLEM, None), "own: expected place to return PlacementResult, got"),
        (place_with, Returns(PROBLEM, placed_on(0)), "own: placement: expected shape (4,), got"),
        (place_with, Returns(PROBLEM, placed_on(0, 0, 0, 2)), "own: placement[3]: expected an"),
        (place_with, Returns(PROBLEM, SystemExit(0)), "own: SystemExit: 0"),
        (evaluate_with, "OWN:MaxLoad:power=2", "got an unexpected keyword argument 'power'"),
        (evaluate_with, Lacks(), "own: expected an evaluator, got one without 'problem'"),
        (evaluate_with, Returns(independent_ops(1.0), None), "an evaluator of the problem that"),
        (evaluate_with, Returns(PROBLEM, [1.0]), "expected evaluate to return EvaluationBatch"),
        (evaluate_with, Returns(PROBLEM, COSTS_OF_ONE), "own: expected costs of 2 placements on"),
        (evaluate_with, Returns(PROBLEM, ValueError("no")), "own: ValueError: no"),
    ],
)
def test_what_is_wrong_with_a_class_is_said(
    use: Callable[[Any], None], plugin: Any, message: str, module_name: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message.replace("OWN", module_name))):
        use(plugin.replace("OWN", module_name) if isinstance(plugin, str) else plugin)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_fails_is_one_line_and_the_others_go_on(module_name: str, jobs: int) -> None:
    """A placer with one of its seeds, and an evaluator with a problem; in other processes, too."""
    save_problem(independent_ops(*range(1, 14)), "many.json")
    placer = f"{module_name}:FailsWithASeed"
    options = [
        f"--placers=heft,{placer}",
        f"--objective={module_name}:OfFewGroups",
        f"--jobs={jobs}",
    ]
    result = invoke("compare", "uneven.json", "many.json", *options, "--seeds=2", "-o", "out")
    assert result.exit_code == 1
    line = (
        rf"placeto: error: (uneven|many) on 2xv100, .*{module_name}\.py, line \d+\) \(and 2 more\)"
    )
    assert re.fullmatch(line, result.stderr.splitlines()[-1])
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith(placer)]
    assert ["1", "of", "2", "failed."] in [row[1:] for row in rows]
    report = json.loads(Path("out/results.json").read_text())
    assert report["profiles"][1]["ratios"] == [None, None]
    failed = report["problems"][0]["placers"][1]
    assert failed["failed"] == 1
    assert failed["error"].startswith(f"KeyError: 'no such group' ({module_name}.py, line ")
    refused = f"{module_name}:OfFewGroups: ValueError: expected few groups ("
    assert [refused in json.dumps(problem) for problem in report["problems"]] == [False, True]
    if jobs == 1:
        with_traceback = invoke(
            "place", "uneven.json", "-o", "p.json", f"--placer={module_name}:Fails", "--debug"
        )
        assert 'raise KeyError("no such  group")' in with_traceback.stderr


def test_an_edit_of_what_a_placer_imports_runs_it_anew(
    module_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module beside it, which it imports when called; a folder and a file as its argument."""
    file, package = tmp_path / f"{module_name}.py", tmp_path / f"{module_name}_parts"
    package.mkdir()
    (package / "turns.py").write_text("from .sizes import WIDTH\n")
    (package / "sizes.py").write_text("WIDTH = 4\n")
    imports = f"        from {module_name}_parts import turns\n        self.width = turns.WIDTH\n"
    text = file.read_text().replace("        self.width = width\n", imports, 1)
    file.write_text(text.replace("% self.width", "// self.width"))
    Path("weights").mkdir()

    def trials(argument: str = "") -> list[Any]:
        for name in [name for name in sys.modules if name.startswith(module_name)]:
            monkeypatch.delitem(sys.modules, name)
        files_digest.cache_clear()  # each command is a process of its own
        imports_digest.cache_clear()
        succeed(
            "compare", "uneven.json", f"--placers={module_name}:Spread{argument}", "-o", "results"
        )
        lines = Path("results/trials.jsonl").read_text().splitlines()
        return [json.loads(line)["placement"] for line in lines[1:]]

    assert trials() == [[0, 0, 0, 0]]
    (package / "other.py").write_text("WIDTH = 3\n")
    assert trials() == [[0, 0, 0, 0]]
    (package / "sizes.py").write_text("WIDTH = 1 + 1\n")
    assert trials() == [[0, 0, 0, 0], [0, 0, 1, 1]]
    counts = []
    for name in ("weights/a", "even.json", "uneven.txt"):
        Path(name).write_text("{}")
        counts.append(len(trials(':width=["weights","even.json"]')))
    assert counts == [3, 4, 4]


def test_an_installed_package_gives_its_placers_names(
    module_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = tmp_path / "own-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 0\n")
    (described / "entry_points.txt").write_text(
        f"[placeto.placers]\nspread = {module_name}:Spread\n"
        f"[placeto.evaluators]\nmax-load = {module_name}:MaxLoad\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    compare = ["compare", "uneven.json", "--objective=max-load:factor=3"]
    (problem,) = succeed_json(*compare, "--placers=spread:width=1,spread,heft")["problems"]
    runtimes = [(name, run["runtime"]) for name, run in runs_of(problem).items()]
    assert runtimes == [("heft", 15.0), ("spread:width=1", 30.0), ("spread", 18.0)]
    assert "expected spread, or another of" in fail(*compare, "--placers=spred")
    assert placer_spec("spread").modules == (module_name,)


def test_python_takes_placers_and_evaluators(module_name: str) -> None:
    module = __import__(module_name)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    options: dict[str, Any] = {"cluster": "2xv100", "quiet": True}
    placed = placeto.place(model, torch.ones(4, 8), placer=module.Spread(1), **options)
    assert set(placed.placement.tolist()) == {0}
    options["evaluator"] = module.MaxLoad
    placed = placeto.place(model, torch.ones(4, 8), seconds=0.2, **options)
    # Of three groups, of which one takes no time, two are apart.
    assert placed.runtime == pytest.approx(placed.problem.group_graph.compute_time[:, 0].max())
    assert placed.lower_bound == 0


@pytest.mark.parametrize("name", ["multilevel", "OWN:Endless"])
def test_a_search_that_is_stopped_did_not_fail(
    name: str, module_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_trials, "SECONDS_BETWEEN_REPORTS", 0.0)
    Path("problems").mkdir()
    times = np.random.default_rng(0).random(40).tolist()
    save_problem(independent_ops(*times), "problems/ops.json.gz")
    looks = iter([False] * 6)  # two before it begins
    watch = Watch(lambda: next(looks, True))
    placer = name.replace("OWN", module_name)
    task = PlaceByName(label=placer, graph=Graph("ops"), seed=0, name=placer, limits=Limits(10_000))
    with pytest.raises(StoppedError):
        task.run(Workspace(Path()), watch)
