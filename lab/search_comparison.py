"""The search of `placeto place` against that of an earlier commit, on many problems and budgets.

    git worktree add ../before COMMIT
    python lab/search_comparison.py ../before --evaluations 300 1000 --seconds 1

Both search in turns, each in a process of its own, from the same problem files. More names are such
files; by default they are those of `search_tables` and `pipelines`, and wide nets on four and eight
devices. Placements of both are simulated by today's simulator. Each row has the mean cost over
seeds, and the ratio to that of the earlier commit. The last rows have the geometric mean for each
budget, and the largest ratios. The earlier commit has to read today's problem files.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean

ROOT = Path(__file__).resolve().parents[1]
WIDE = {
    "nasnet": ("8xv100", "2x(4xrtx3090)"),
    "inception-v3": ("2xv100+2xk80",),
    "nmt-4": ("1xcpu+1xv100+3xk80",),
    "cifar10:7": ("8xk80",),
    "cifar10:12": ("4xv100+4xk80",),
}
NUM_WORST = 5


# The process of one of the two states


def run_commands() -> None:
    """Read the words of a command of `placeto` from each line, run it, and print its exit code."""
    from placeto_tools.main import placeto  # noqa: PLC0415

    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # C code of an earlier commit prints, too
    for line in sys.stdin:
        print(placeto(json.loads(line), standalone_mode=False), file=output, flush=True)


def start_process(checkout: Path) -> "subprocess.Popen[str]":
    """Start a process that runs commands with the code of a checkout."""
    sources = [*sorted(checkout.glob("packages/*/src")), checkout / "tools/src"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sources))}
    command = [sys.executable, "-W", "ignore", __file__, "--run-commands"]
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


# The comparison


def write_problems(folder: str) -> list[str]:
    """Write the default problems to files; return their names."""
    import pipelines  # noqa: PLC0415

    from placeto import read_problem  # noqa: PLC0415
    from placeto.placing.place_problem import search_problem  # noqa: PLC0415
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
        save_problem(pipelines.read_pipeline(name), paths[-1])
    return paths


def compare(options: argparse.Namespace, folder: str) -> None:
    """Print a row for each problem and budget."""
    from placeto.placing.costs import costs  # noqa: PLC0415
    from placeto.placing.place_problem import search_problem  # noqa: PLC0415
    from placeto_graphs import load_placement, load_problem  # noqa: PLC0415
    from placeto_simulator import Simulator  # noqa: PLC0415

    processes = {"before": start_process(options.checkout), "now": start_process(ROOT)}
    ratios: dict[str, list[tuple[float, str]]] = defaultdict(list)
    budgets = [("--max-evaluations", f"{count}") for count in options.evaluations]
    budgets += [("--seconds", f"{seconds}") for seconds in options.seconds]
    output = f"{folder}/placement.json"
    for path in options.problems or write_problems(folder):
        name = Path(path).name.removesuffix(".json.gz")
        problem = search_problem(load_problem(path))
        simulator = Simulator(problem)
        for budget in budgets:
            sums = dict.fromkeys(processes, 0.0)
            for seed in range(options.seeds):
                for state, process in processes.items():
                    command = ["place", path, *budget, "--seed", f"{seed}", "-o", output, "--force"]
                    print(json.dumps(command), file=process.stdin, flush=True)
                    next(iter(process.stdout or []))  # waits until the command is done
                    placement = load_placement(output, problem)
                    sums[state] += float(costs(simulator, placement[None])[0]) / options.seeds
            ratio = sums["now"] / sums["before"]
            limit = " ".join(budget).removeprefix("--")
            ratios[limit].append((ratio, name))
            print(f"| {name} | {limit} | {sums['before']:.5g} | {sums['now']:.5g} | {ratio:.3f} |")
            sys.stdout.flush()
    for limit, rows in ratios.items():
        mean = geometric_mean(ratio for ratio, _ in rows)
        worst_rows = sorted(rows, reverse=True)[:NUM_WORST]
        worst = ", ".join(f"{ratio:.3f} {name}" for ratio, name in worst_rows)
        print(f"{limit}: geometric mean {mean:.4f} of {len(rows)}; worst {worst}")
    for process in processes.values():
        process.communicate()  # has no further lines, so that it ends


def main() -> None:
    """Compare, or be one of the two processes."""
    if sys.argv[1:] == ["--run-commands"]:
        run_commands()
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="of the earlier commit")
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--evaluations", type=int, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(options, folder)


if __name__ == "__main__":
    main()
