"""Thousands of damaged files: each is a valid object or one clear error."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from example_graphs import diamond_problem
from placeto_graphs import (
    GraphError,
    load_cluster,
    load_graph,
    load_pipedream_profile,
    load_placement,
    load_problem,
    save_cluster,
    save_graph,
    save_placement,
    save_problem,
)

ROUNDS = 1500
NUMBERS: list[Any] = [-1, 0, 1, 2**31, 2**63, 2**80, 0.5, -0.0, 1e308, float("nan"), float("inf")]
OTHERS: list[Any] = [None, True, "", "k80", "\x00\n", "\ud800", [], [[]], [1, "a"], {}, {"a": 1}]
STRANGE = [*NUMBERS, *OTHERS]
PROFILE = (
    "node1 -- Input -- forward_compute_time=0.0, backward_compute_time=0.0, "
    "activation_size=4096.0, parameter_size=0.0\n"
    "node2 -- LSTM(8, 8) -- forward_compute_time=1.5, backward_compute_time=3.0, "
    "activation_size=[4096.0; 64.0], parameter_size=2048.0\n"
    "\tnode1 -- node2\n"
)


def flipped(content: bytes, generator: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
    return bytes(damaged)


def truncated(content: bytes, generator: random.Random) -> bytes:
    return content[: generator.randrange(len(content))]


def spliced(content: bytes, generator: random.Random) -> bytes:
    start, end = sorted(generator.randrange(len(content)) for _ in range(2))
    return (
        content[:start] + content[end:]
        if generator.random() < 0.5
        else content + content[start:end]
    )


def restructured(content: bytes, generator: random.Random) -> bytes:
    """Drop, retype, duplicate or add one field or element anywhere in a JSON document."""
    try:
        document = json.loads(content)
    except ValueError:
        return flipped(content, generator)
    holders = [document]
    for holder in holders:
        inner = holder.values() if isinstance(holder, dict) else holder
        holders += [value for value in inner if isinstance(value, dict | list)]
    holder = generator.choice([holder for holder in holders if holder])
    key = generator.choice(list(holder) if isinstance(holder, dict) else list(range(len(holder))))
    action = generator.randrange(4)
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key] = generator.choice(STRANGE)
    elif isinstance(holder, list):
        holder.insert(key, generator.choice([holder[key], generator.choice(STRANGE)]))
    else:
        holder[f"{key}x"] = holder[key]
    return json.dumps(document).encode()


MUTATIONS = (flipped, truncated, spliced, restructured)


def files(folder: Path) -> dict[Path, Callable[[Path], Any]]:
    problem = diamond_problem(compute_time=[[1, 1], [2, np.inf], [3, 3], [4, 4]])
    save_problem(problem, folder / "problem.json")
    save_problem(problem, folder / "problem.json.gz")
    save_graph(problem.graph, folder / "graph.json")
    save_cluster(problem.cluster, folder / "cluster.toml")
    save_placement(np.array([0, 0, 1, 1]), problem, folder / "placement.json")
    (folder / "profile.txt").write_text(PROFILE)
    return {
        folder / "problem.json": load_problem,
        folder / "problem.json.gz": load_problem,
        folder / "graph.json": load_graph,
        folder / "cluster.toml": load_cluster,
        folder / "placement.json": lambda path: load_placement(path, problem),
        folder / "profile.txt": load_pipedream_profile,
    }


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_damaged_file_is_an_object_or_one_line(
    tmp_path: Path, mutation: Callable[[bytes, random.Random], bytes]
) -> None:
    generator = random.Random(mutation.__name__)  # noqa: S311
    outcomes = {"loaded": 0, "refused": 0}
    for path, load in files(tmp_path).items():
        content = path.read_bytes()
        for _ in range(ROUNDS // 6):
            path.write_bytes(mutation(content, generator))
            try:
                load(path)
                outcomes["loaded"] += 1
            except GraphError as error:
                outcomes["refused"] += 1
                assert str(error).startswith(f"{path}: ")
                assert "\n" not in str(error)
    assert outcomes["refused"] > ROUNDS // 2


def test_every_damaged_text_inside_a_gzip_file_is_an_object_or_one_line(tmp_path: Path) -> None:
    generator = random.Random(0)  # noqa: S311
    path = tmp_path / "problem.json.gz"
    save_problem(diamond_problem(), path)
    content = gzip.decompress(path.read_bytes())
    for number in range(ROUNDS):
        path.write_bytes(gzip.compress(MUTATIONS[number % 4](content, generator), 1))
        try:
            load_problem(path)
        except GraphError as error:
            assert str(error).startswith(f"{path}: ")
            assert "\n" not in str(error)
