"""The search of `placeto place` against that of an earlier commit, on many problems and budgets.

    git worktree add ../before d30ba32c
    python lab/search_comparison.py ../before --version-5 --evaluations 300 1000 --seconds 1

Both search in turns, each in a process of its own, from the same problem files. More names are such
files; by default they are those of `search_tables` and `pipelines`, and wide nets on four and eight
devices. Placements of both are simulated by today's simulator. Each row has the mean cost over
seeds, and the ratio to that of the earlier commit. The last rows have the geometric mean for each
budget, and the largest ratios. The earlier commit has to know `search_with_choices`, as d30ba32c
does, or `place_problem`.
"""

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WIDE = {
    "nasnet": ("8xv100", "2x(4xrtx3090)"),
    "inception-v3": ("2xv100+2xk80",),
    "nmt-4": ("1xcpu+1xv100+3xk80",),
    "cifar10:7": ("8xk80",),
    "cifar10:12": ("4xv100+4xk80",),
}
COLUMNS_OF_VERSION_5 = {  # that a graph has to have there, and their default
    "op_types": "op",
    "scopes": "",
    "phases": 0,
    "flops": 0.0,
    "bytes_accessed": 0.0,
    "parameter_bytes": 0,
    "workspace_bytes": 0,
    "colocation": -1,
}
UNKNOWN_TO_VERSION_5 = ("tokens", "micro_batch", "machine", "machine_names")


def write_version_5(path: str) -> str:
    """Write a problem file as d30ba32c reads it, beside itself; return its name."""
    with gzip.open(path) as file:
        document = json.load(file)
    graph = document["graph"]
    for name, default in COLUMNS_OF_VERSION_5.items():
        graph.setdefault(name, [default] * len(graph["op_names"]))
    graph.setdefault("measured_time", [])
    for name in UNKNOWN_TO_VERSION_5:
        graph.pop(name, None)
        document["cluster"].pop(name, None)
    older = path.replace(".json.gz", "-5.json.gz")
    with gzip.open(older, "wt") as file:
        json.dump(document | {"version": 5}, file)
    return older


# The process of one of the two states


def search(problem: Any, evaluations: int | None, seconds: float | None, seed: int) -> list[int]:
    """Place a problem with the code on the path; return the devices of its groups."""
    from placeto.placing import choices, placements  # noqa: PLC0415
    from placeto.progress import PlainProgress  # noqa: PLC0415

    quiet = PlainProgress(None)
    search_of_before = getattr(choices, "search_with_choices", None)
    if search_of_before:
        result, *_ = search_of_before(
            problem, quiet, seconds=seconds, max_evaluations=evaluations, seed=seed
        )
    else:
        settings = placements.PlaceSettings(seconds=seconds, max_evaluations=evaluations, seed=seed)
        result = placements.place_problem(problem, settings, quiet).result
    return list(map(int, result.placement))


def answer() -> None:
    """Read a search a line, and write its placement a line."""
    from placeto_graphs import load_problem  # noqa: PLC0415

    problems: dict[str, Any] = {}
    answers = sys.stdout
    with redirect_stdout(sys.stderr):
        for line in sys.stdin:
            path, *limits = json.loads(line)
            if path not in problems:
                problems = {path: load_problem(path)}
            print(json.dumps(search(problems[path], *limits)), file=answers, flush=True)


def started(checkout: Path) -> "subprocess.Popen[str]":
    """Start a process that searches with the code of a checkout."""
    sources = [*sorted(checkout.glob("packages/*/src")), checkout / "tools/src"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sources))}
    command = [sys.executable, "-W", "ignore", __file__, "--answer"]
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


# The comparison


def write_problems(folder: str) -> list[str]:
    """Write the default problems to files; return their names."""
    import pipelines  # noqa: PLC0415

    from placeto import read_problem  # noqa: PLC0415
    from placeto.placing.placements import search_problem  # noqa: PLC0415
    from placeto_graphs import save_problem  # noqa: PLC0415
    from search_tables import OF_FAMILIES, OF_TABLE_1  # noqa: PLC0415

    named = [tuple(name.rsplit("/", 1)) for name in (*OF_TABLE_1, *OF_FAMILIES)]
    named += [(source, cluster) for source, clusters in WIDE.items() for cluster in clusters]
    paths = []
    for source, cluster in named:
        paths.append(f"{folder}/{source}-{cluster}.json.gz".replace(":", "-"))
        save_problem(search_problem(read_problem(source, cluster)), paths[-1])
    for name in pipelines.PROBLEMS:
        paths.append(f"{folder}/{name}.json.gz".replace(", ", "-"))
        save_problem(pipelines.made(name), paths[-1])
    return paths


def compare(options: argparse.Namespace, folder: str) -> None:
    """Print a row for each problem and budget."""
    from placeto.placing.costs import costs  # noqa: PLC0415
    from placeto_graphs import load_problem  # noqa: PLC0415
    from placeto_simulator import Simulator  # noqa: PLC0415

    states = {"before": started(options.checkout), "now": started(ROOT)}
    ratios: dict[str, list[tuple[float, str]]] = defaultdict(list)
    budgets = [(count, None) for count in options.evaluations]
    budgets += [(None, seconds) for seconds in options.seconds]
    for path in options.problems or write_problems(folder):
        name = Path(path).name.removesuffix(".json.gz")
        simulator = Simulator(load_problem(path))
        paths = {"before": write_version_5(path) if options.version_5 else path, "now": path}
        for evaluations, seconds in budgets:
            budget = f"{evaluations:,} evaluations" if evaluations else f"{seconds} s"
            sums = dict.fromkeys(states, 0.0)
            for seed in range(options.seeds):
                for state, process in states.items():
                    job = [paths[state], evaluations, seconds, seed]
                    print(json.dumps(job), file=process.stdin, flush=True)
                    line = next(iter(process.stdout or []))
                    placement = np.array([json.loads(line)], np.int32)
                    sums[state] += float(costs(simulator, placement)[0]) / options.seeds
            ratio = sums["now"] / sums["before"]
            ratios[budget].append((ratio, name))
            print(f"| {name} | {budget} | {sums['before']:.5g} | {sums['now']:.5g} | {ratio:.3f} |")
            sys.stdout.flush()
    for budget, rows in ratios.items():
        mean = math.exp(sum(math.log(ratio) for ratio, _ in rows) / len(rows))
        worst = ", ".join(f"{ratio:.3f} {name}" for ratio, name in sorted(rows)[: -5 - 1 : -1])
        print(f"{budget}: geometric mean {mean:.4f} of {len(rows)}; worst {worst}")
    for process in states.values():
        process.terminate()


def main() -> None:
    """Compare, or answer as one of the two processes."""
    if sys.argv[1:] == ["--answer"]:
        answer()
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="of the earlier commit")
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--evaluations", type=int, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--version-5", action="store_true", help="it reads files of version 5")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(options, folder)


if __name__ == "__main__":
    main()
