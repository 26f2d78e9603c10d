"""Ctrl-C while compiled code runs is a `KeyboardInterrupt`, and never the end of the process."""

import subprocess
import sys
from textwrap import indent

import pytest

COMMON = """
import signal
import networkx as nx
import numpy as np
from placeto_graphs import Moves, PlacementProblem, from_networkx, parse_cluster

grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 100, create_using=nx.DiGraph))
graph = from_networkx(nx.relabel_nodes(nx.DiGraph(e for e in grid.edges if e[0] < e[1]), str))
problem = PlacementProblem(
    graph=graph, cluster=parse_cluster("2xk80"), compute_time=np.ones((graph.num_ops, 2))
)
rows = np.random.default_rng(0).integers(0, 2, (200, problem.num_groups)).astype(np.int32)
moves = Moves(
    set_of=np.arange(200)[None], device=rows[:1, :200], allowance=np.ones((1, 200)),
    first_member=np.arange(301), members=np.arange(300),
)
"""
OF_BOUND = "from placeto_baselines import lower_bound"
OF_STEP = "from placeto_simulator import Simulator; evaluator = Simulator(problem, 1)"
OF_THROUGHPUT = "from placeto_simulator import ThroughputEvaluator as T; evaluator = T(problem)"
ENTRIES = {
    "bound": (OF_BOUND, "lower_bound(problem)"),
    "evaluate": (OF_STEP, "evaluator.evaluate(rows)"),
    "runtimes": (OF_STEP, "evaluator.runtimes(rows)"),
    "schedule": (OF_STEP, "evaluator.schedule(rows)"),
    "walk": (OF_STEP, "evaluator.walk(rows[:1], moves)"),
    "walk of loads": (OF_THROUGHPUT, "evaluator.walk(rows[:1], moves)"),
}
INTERRUPTED = """
{call}
num_interrupted = 0
signal.signal(signal.SIGALRM, signal.default_int_handler)
for number in range(60):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + 5 * number))
        while True:
{calls}
    except KeyboardInterrupt:
        num_interrupted += 1
print(num_interrupted)
"""


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_interrupt_in_compiled_code_is_an_exception(entry: str) -> None:
    preparation, call = ENTRIES[entry]
    script = COMMON + preparation + INTERRUPTED.format(call=call, calls=indent(call, " " * 12))
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr[-500:]) == (0, "60\n", "")
