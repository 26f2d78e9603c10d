"""The arena: files of several kinds, each by its own objective, on one page."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from placeto.errors import InputError
from placeto.placing.placers import placer_spec
from placeto_experiments.arena import arena, run_arena
from placeto_experiments.tables import OF_FAMILIES, OF_TABLE_1

NODES = [{"id": n, "cpuLatency": 90.0, "fpgaLatency": 2.0, "size": 1e6} for n in (1, 2)]
PARTITIONING = {
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "maxSizePerFPGA": 1e9,
    "nodes": NODES,
    "edges": [{"sourceId": 1, "destId": 2, "cost": 0.5}],
}
# A node of 1 s, and two of 3 s that read it; to another device its output takes 1 s.
DOPPLER = "4\n3,\n0, 0\n1, 2\n10000000000,10000000000\n30000000000,0\n30000000000,0\n"
PROFILE = "node1 -- Linear -- forward_compute_time=1, backward_compute_time=2, " + (
    "activation_size=8, parameter_size=8"
)


def write_graphs(folder: Path) -> Path:
    folder.mkdir()
    (folder / "chain.json").write_text(json.dumps(PARTITIONING))
    (folder / "chain.txt").write_text(DOPPLER)
    (folder / "profile.txt").write_text(PROFILE)
    (folder / "reference.json").write_text("{}")
    return folder


def rows(page: str, first: str) -> list[list[str]]:
    """Return the cells of the rows of a page that begin so."""
    lines = [line for line in page.splitlines() if line.startswith(f"| {first} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_graph_is_placed_by_its_objective(tmp_path: Path) -> None:
    graphs, output = write_graphs(tmp_path / "graphs"), tmp_path / "arena"
    arguments = [str(graphs), "--placers=single,local-search", "--no-models", "--seconds=0.05"]
    command = [*arguments, "--seeds=2", "-o", str(output)]
    result = CliRunner().invoke(run_arena, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    page = (output / "results.md").read_text()
    of_all, seconds, *of_each = rows(page, "Single GPU")
    # By hand: 4 of 2.5 ms, 7 of 5 s, and one layer of 3 ms, with an overhead, that stays.
    assert [row[1] for row in of_each[:2]] == ["4.000 ms", "7.000 s"]
    assert of_each[2][1].startswith("3.00")
    assert of_all[1] == f"{(4 / 2.5 * 7 / 5) ** (1 / 3):.3f}"
    assert seconds[1] == "3"
    best = rows(page, "Local search")
    assert best[0][1] == "1.000"
    assert [row[1] for row in best[2:]] == ["2.500 ms", "5.000 s", of_each[2][1]]
    assert "time per sample (throughput) of 1" in page
    assert "reference.json: expected a problem file, a graph file or an input of" in page
    again = CliRunner().invoke(run_arena, command, catch_exceptions=False)
    assert again.exit_code == 0
    assert (output / "results.md").read_text() == page


def test_a_file_that_is_named_has_to_be_a_graph(tmp_path: Path) -> None:
    graphs = write_graphs(tmp_path / "graphs")
    single = {"single": placer_spec("single")}
    other = r"reference.json: .*got other JSON \(object missing required field format\)$"
    with pytest.raises(InputError, match=other):
        arena([graphs / "reference.json"], single, 1, 1.0)
    with pytest.raises(InputError, match=r"^arena: expected a file of a graph, got none$"):
        arena([], single, 1, 1.0, with_models=False)


def test_a_placer_that_cannot_be_made_ends_it_at_its_start(tmp_path: Path) -> None:
    graphs = write_graphs(tmp_path / "graphs")
    wrong = {"own": placer_spec("placeto_baselines:LocalSearch:depth=3")}
    with pytest.raises(InputError, match=r"LocalSearch:depth=3: .*unexpected keyword .*'depth'$"):
        arena([graphs], wrong, 1, 1.0, with_models=False)


def test_a_file_counts_once_however_often_it_is_named(tmp_path: Path) -> None:
    graphs = write_graphs(tmp_path / "graphs")
    (tmp_path / "link").symlink_to(graphs)
    single = {"single": placer_spec("single")}
    given = [graphs, graphs / "chain.txt", graphs / ".." / "graphs", tmp_path / "link"]
    found = arena(given, single, 1, 1.0, with_models=False)
    assert sorted(found.problems) == ["graphs-chain", "graphs-chain-2", "graphs-profile"]
    with pytest.raises(InputError, match=r"reference.json"):  # it is named, too
        arena([graphs, graphs / "reference.json"], single, 1, 1.0)


def test_models_and_files_have_names_of_their_own(tmp_path: Path) -> None:
    graphs = write_graphs(tmp_path / "graphs")
    single = {"single": placer_spec("single")}
    found = arena([graphs], single, 1, 1.0)
    assert [*found.problems][:3] == ["graphs-chain", "graphs-chain-2", "graphs-profile"]
    assert {"nasnet-4xk80", "ptb-11-2xk80"} < found.problems.keys()
    assert len(found.trials) == 2 * len(found.problems)


def test_a_file_may_be_called_as_a_model_is(tmp_path: Path) -> None:
    graphs = write_graphs(tmp_path / "nasnet")
    (graphs / "chain.txt").rename(graphs / "4xk80.txt")
    found = arena([graphs / "4xk80.txt"], {"single": placer_spec("single")}, 1, 1.0)
    assert {"nasnet-4xk80", "nasnet-4xk80-2"} < found.problems.keys()
    assert len(found.problems) == 1 + len(OF_TABLE_1 + OF_FAMILIES)


def test_a_link_to_itself_is_no_graph(tmp_path: Path) -> None:
    graphs = write_graphs(tmp_path / "graphs")
    (graphs / "loop.json").symlink_to("loop.json")
    found = arena([graphs], {"single": placer_spec("single")}, 1, 1.0, with_models=False)
    assert len(found.problems) == 3
