"""A package, installed from its sources as a user would, brings what it needs and no more."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PINS = Path("3rdparty/python/requirements.txt")
LIST = """
import importlib.metadata, json
found = importlib.metadata.distributions()
print(json.dumps({distribution.name: distribution.version for distribution in found}))
"""
USE = """
import networkx
import numpy
from placeto_graphs import PlacementProblem, colocate, from_networkx
from placeto_graphs import load_problem, memory_penalised_runtime, merge_and_colocate
from placeto_graphs import parse_cluster, save_problem
from placeto_simulator import Simulator

chain = networkx.path_graph(50, create_using=networkx.DiGraph)
networkx.set_edge_attributes(chain, 4096, "bytes")
graph = from_networkx(chain)
problem = PlacementProblem(
    graph=graph,
    cluster=parse_cluster("2xk80"),
    compute_time=numpy.full((50, 2), 1e-3),
    grouping=merge_and_colocate(graph, colocate(graph, rules=()), num_groups=5),
)
save_problem(problem, "problem.json.gz")
assert load_problem("problem.json.gz") == problem
result = Simulator(problem).evaluate(numpy.zeros((1, 5), numpy.int32))
limit = problem.cluster.devices[0].memory_bytes
print(problem.group_graph, memory_penalised_runtime(result, limit).round(3))
"""


def run(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def install(python: Path, *folders: str) -> set[str]:
    """Install packages from their sources; return what an environment has of the project then."""
    # The pinned pip installs from outside, because some systems' Python comes without its own.
    pip = (sys.executable, "-m", "pip", "--python", python, "install")
    run(*pip, "--constraint", PINS, "--build-constraint", PINS, *folders)
    installed = json.loads(run(python, "-I", "-c", LIST))
    siblings = {name for name in installed if name.startswith("placeto")}
    pins = set(PINS.read_text().lower().replace("_", "-").split())
    others = installed.keys() - siblings
    assert {f"{name}=={installed[name]}".lower().replace("_", "-") for name in others} <= pins
    assert "torch" not in others
    return siblings


@pytest.mark.slow
def test_the_simulator_without_torch(tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False, symlinks=True)
    python = tmp_path / "bin" / "python"
    siblings = install(python, "./packages/graphs", "./packages/simulator")
    assert siblings == {"placeto-graphs", "placeto-simulator"}
    assert run(python, "-I", "-c", USE) == "GroupGraph(groups=5, devices=2, edges=4) [0.05]\n"
