"""Files of problems, graphs and placements: what is written, read and refused."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import diamond, diamond_problem, refused
from graph_strategies import problems
from placeto_graphs import (
    BatchDivision,
    GraphError,
    PlacementProblem,
    load_copies,
    load_graph,
    load_placement,
    load_placement_of_any_level,
    load_problem,
    parse_cluster,
    save_graph,
    save_placement,
    save_problem,
    write_atomically,
)
from placeto_graphs.files import storage
from placeto_graphs.testing import example_problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(problem=problems(), suffix=st.sampled_from([".json", ".json.gz"]), data=st.data())
def test_problems_graphs_and_placements_survive_a_round_trip(
    folder: Path, problem: PlacementProblem, suffix: str, data: st.DataObject
) -> None:
    path = folder / f"problem{suffix}"
    save_problem(problem, path)
    assert load_problem(path) == problem
    save_graph(problem.graph, path)
    assert load_graph(path) == problem.graph
    can_run = np.isfinite(problem.group_graph.compute_time)
    placement = [data.draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in can_run]
    save_placement(np.array(placement), problem, folder / "placement.json")
    loaded = load_placement(folder / "placement.json", problem)
    assert loaded.tolist() == placement
    assert loaded.dtype == np.int32
    assert list(folder.glob(".*")) == []


def test_a_placement_file_is_a_plain_object_of_names(tmp_path: Path) -> None:
    save_placement(np.array([0, 1, 0, 1]), diamond_problem(), tmp_path / "plain.json")
    expected = {"split": "k80:0", "left": "k80:1", "right": "k80:0", "join": "k80:1"}
    assert json.loads((tmp_path / "plain.json").read_text()) == expected


def test_a_placement_file_may_have_copies_besides_its_groups(tmp_path: Path) -> None:
    problem, path = diamond_problem(), tmp_path / "copies.json"
    division = BatchDivision((3, 1), ("k80:0", "k80:1"), shard=True, micro_batches=2)
    save_placement(np.array([0, 1, 0, 1]), problem, path, division)
    assert load_copies(path) == division
    assert load_placement(path, problem).tolist() == [0, 1, 0, 1]
    assert load_placement_of_any_level(path, problem)[1].tolist() == [0, 1, 0, 1]
    content = json.loads(path.read_text())
    for load in (load_placement, load_placement_of_any_level):  # of one copy
        with refused(f"{path}: copies: expected a placement of this problem, got one of copies"):
            load(path, example_problem(4))
    path.write_text(json.dumps(content | {"copies": {"samples": [3, "1"], "devices": []}}))
    with pytest.raises(GraphError, match=r"copies\.json: .*samples\[1\]"):
        load_copies(path)
    path.write_text(json.dumps({"copies": "k80:0", "left": "k80:1"}))  # a group of this name
    assert load_copies(path) is None


@pytest.mark.parametrize("rules", [None, (), ("id", r"scopes:lstm\.step\d+", "single-consumers")])
def test_rules_travel_with_a_problem_and_a_sound_file_is_read_once(
    tmp_path: Path, rules: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = diamond_problem(rules=rules)
    save_problem(problem, tmp_path / "problem.json")
    without_queue = (tmp_path / "problem.json").read_text().replace('"queue":"fifo",', "")
    (tmp_path / "problem.json").write_text(without_queue)
    monkeypatch.setattr(storage, "checked", None)
    monkeypatch.delattr(json, "loads")  # what it is read with again to name a fault
    assert load_problem(tmp_path / "problem.json").rules == rules


def test_devices_of_one_kind_share_a_column_and_usual_columns_are_left_out(tmp_path: Path) -> None:
    times = diamond().measured_time["k80"]
    problem = diamond_problem(
        cluster=parse_cluster("3xk80+1xcpu"),
        compute_time=np.stack([times, times, times, times * 9], axis=1),
    )
    save_problem(problem, tmp_path / "problem.json")
    content = json.loads((tmp_path / "problem.json").read_text())
    assert content["device_column"] == [0, 0, 0, 1]
    assert len(content["compute_time"]) == 2
    usual = {"dtype", "groups", "group_channels", "computed_part", "micro_batch"}
    assert not usual & {*content["graph"]}
    assert load_problem(tmp_path / "problem.json") == problem


def test_equal_texts_of_a_column_are_one_object(tmp_path: Path) -> None:
    graph = replace(diamond(), scopes=("encoder.layer.0", "decoder") * 2)
    save_graph(graph, tmp_path / "graph.json")
    first, _, third, _ = load_graph(tmp_path / "graph.json").scopes
    assert first is third


def test_names_like_keys_are_no_keys(tmp_path: Path) -> None:
    names = ('"flops":', "{", 'x"flops" : [', "flops", "\\")
    graph = replace(diamond(), op_names=names[:4], scopes=names[1:], op_types=names[:4])
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json") == graph


ONE_GROUP = {"group_of": [0, 0], "group_names": ["a"]}
TWO_GROUPS = {"group_of": [0, 0, 1, 1], "group_names": ["b", "c"]}
TIMES = {"kind": "k80", "seconds": [0] * 4}
PROBLEM_ERRORS: list[tuple[dict[str, Any], str]] = [
    # What to change, such as an inner field or with ... to leave it out, and the error.
    ({"format": "placeto-graph"}, "format: expected 'placeto-problem', got 'placeto-graph'"),
    ({"format": ...}, "object missing required field format"),
    ({"version": 5, "novelty": 1}, "version: expected 6, got 5"),
    ({"rules": ["id", "friends"]}, "rules[1]: expected one of id, gradients, updates, single-"),
    ({"new\nname": 1}, r"object contains unknown field new\nname"),
    ({"graph.flops": ...}, "graph: object missing required field flops"),
    ({"graph.flops": [0, 1, None, 3]}, "graph.flops[2]: expected float, got null (None)"),
    ({"graph.phases": [0, 1.5, 0, 0]}, "graph.phases[1]: expected int, got float (1.5)"),
    ({"graph.scopes": ["a", "b", 3, "d"]}, "graph.scopes[2]: expected str, got int (3)"),
    ({"graph.flops": "0, 1, 2, 3"}, "graph.flops: expected array, got str ('0, 1, 2, 3')"),
    ({"graph.waits": [[1, 0], [2]]}, "graph.waits[1]: expected array of length 2, got 1"),
    ({"graph.waits": [[0, 3]]}, "graph.edges and waits: expected no cycle, got 'split' -> "),
    ({"graph.flops": [0, 1, 2]}, "graph.flops: expected shape (4,), got (3,)"),
    ({"compute_time": [[1, "2", 3, 4]]}, "compute_time[0][1]: expected float | null, got str"),
    ({"graph.tensor_bytes": [1, 2, 3, 2**80]}, "graph.tensor_bytes[3]: expected an integer from"),
    ({"graph.edge_tensors": [0, 1]}, "graph.edge_consumers: expected 2 ops, as many as edge_te"),
    ({"graph.measured_time": [TIMES] * 2}, "graph.measured_time[1].kind: 'k80' is there twice"),
    ({"cluster.bandwidth": [[1], [1, 2]]}, "cluster.bandwidth: expected rows of one length, got"),
    ({"cluster.devices": [{"name": "a", "kind": "k80"}]}, "cluster.devices[0]: object missing req"),
    ({"device_column": [0, 1]}, "device_column[1]: expected one of 1 columns of compute_time"),
    (
        {"levels": [ONE_GROUP | {"group_of": [0, -(2**70)]}, TWO_GROUPS]},
        f"levels[0].group_of[1]: expected an integer from 0 to 0, got -{2**70}",
    ),
    ({"levels": [TWO_GROUPS] * 2}, "levels[0].group_of: expected the groups of 2 groups of level"),
]


@pytest.mark.parametrize(("changes", "message"), PROBLEM_ERRORS)
def test_a_wrong_problem_file_is_named_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "wrong.json"
    save_problem(diamond_problem(), path)
    content = json.loads(path.read_text())
    for key, value in changes.items():
        target, (*outer, last) = content, key.split(".")
        for name in outer:
            target = target[name]
        target[last] = value
        if value is ...:
            del target[last]
    path.write_text(json.dumps(content))
    with refused(f"{path}: {message}"):
        load_problem(path)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"flops":', '"flops":[9,9,9,9],"flops":', "flops"),
        ('"version":', '"version":5,"version" :', "version"),
        ('"flops":', '"flops":[9,9,9,9],"fl\\u006fps":', "flops"),
    ],
)
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, old: str, new: str, key: str) -> None:
    path = tmp_path / "problem.json"
    save_problem(diamond_problem(), path)
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))
    with refused(f"{path}: '{key}': expected each key of an object once, got it again"):
        load_problem(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON: Expecting value"),
        (b"[]", "expected object, got array"),
        (b'{"format": "placeto-graph", "version": 2, "graph": {"flops": [0', "expected JSON: "),
        (b'{"format": NaN, "version": 1}', "expected JSON: NaN is no finite number"),
        (b'{"format": "\xff", "version": 1}', "expected text in UTF-8: "),
        (b'{"graph": ' + b"[" * 100_000, "expected fewer levels of brackets"),
        (b'{"version": ' + b"1" * 5000 + b"}", "expected JSON: Exceeds the limit (4300 digits)"),
    ],
)
def test_what_is_not_json_is_named_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    for load in (load_problem, load_graph):
        with refused(f"{path}: {message}"):
            load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"split": "k80:2"}', "'split': expected k80:1, or another of k80:0, got 'k80:2'"),
        ('{"merge": "k80:0"}', "'merge': expected the name of a group of the problem"),
        ('{"split": "k80:0", "split": "k80:1"}', "'split': expected each key of an object once"),
        ('{"split": "k80:0"}', "'left': expected a device for every group, got none"),
    ],
)
def test_a_wrong_placement_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "placement.json"
    path.write_text(content)
    with refused(f"{path}: {message}"):
        load_placement(path, diamond_problem())


def test_what_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with refused("placement[1]: expected an integer from 0 to 1"):
        save_placement(np.array([0, 2, 0, 0]), diamond_problem(), tmp_path / "placement.json")
    for name in ("problem.txt", "problem.gz"):
        with refused(f"{tmp_path / name}: expected a name that ends in .json or .json.gz"):
            save_problem(diamond_problem(), tmp_path / name)
        with refused(f"{tmp_path / name}: expected a name that ends in .json or .json.gz"):
            load_problem(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [0, 20, -1])
def test_a_truncated_gzip_file_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.json.gz"
    save_problem(diamond_problem(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with refused(f"{path}: expected "):
        load_problem(path)


@pytest.mark.parametrize("name", ["bomb.json.gz", "large.json"])
def test_a_large_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(storage, "MAX_BYTES", 1_000_000)
    path, content = tmp_path / name, b" " * 50_000_000
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(GraphError, match=r"expected at most 1000000 bytes.*, got more"):
        load_problem(path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "content"
    write_atomically(path, b"old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_the_usual_permissions_and_keeps_links(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    (tmp_path / "link").symlink_to(tmp_path / "written")
    write_atomically(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "written").read_bytes() == b"content"
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "usual").stat().st_mode
