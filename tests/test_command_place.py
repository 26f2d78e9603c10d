"""``placeto place``: what it says where nothing fits, and where a file has no finer groups."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from command_runs import invoke, succeed
from placeto_graphs import PlacementProblem, load_problem, save_problem
from placeto_graphs.testing import example_problem


def with_memory(memory_bytes: int) -> PlacementProblem:
    problem = example_problem()
    devices = tuple(replace(each, memory_bytes=memory_bytes) for each in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


@pytest.mark.parametrize("placer", [["--start=nothing", "--max-evaluations=50"], ["--placer=heft"]])
def test_a_placement_that_does_not_fit_is_written_and_has_an_exit_code(
    tmp_path: Path, placer: list[str]
) -> None:
    path, output = tmp_path / "problem.json", tmp_path / "placement.json"
    for memory, fits in ((1, False), (10**12, True)):
        save_problem(with_memory(memory), path)
        result = invoke("place", path, *placer, "--json", "--force", "-o", output)
        assert result.exit_code == (0 if fits else 3), result.output
        assert json.loads(result.stdout)["fits"] == fits
        assert ("no placement that fits the memory was found\n" in result.stderr) == (not fits)
        assert output.is_file()


def test_a_file_without_rules_says_how_to_make_one_with_finer_groups(tmp_path: Path) -> None:
    path, finer, output = (tmp_path / f"{name}.json" for name in ("problem", "finer", "placement"))
    save_problem(replace(example_problem(), rules=None, hierarchy=None), path)
    place: list[object] = ["place", path, "--start=nothing", "--max-evaluations=50", "-o", output]
    hint = invoke(*place).stderr
    assert "has no co-location rules, so a search stays at its 8 groups" in hint
    command = hint.partition("placeto ")[2].replace("FILE", str(finer)).split()
    succeed(*command)
    assert load_problem(finer).rules is not None
    place[1] = finer
    assert "rules" not in invoke(*place, "--force").stderr
    assert "rules" not in invoke(*place, "--placer=heft", "--force").stderr
