"""Thousands of damaged files and graphs: each is a valid object or one clear error."""

import json
import random
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from example_files import CARD, DEVICES, EDGES, HEAD, LINKED, NODES, OWN, PROFILE
from example_graphs import diamond, diamond_problem, plain_graph
from placeto_graphs import (
    DEVICE_KINDS,
    GraphError,
    PlacementProblem,
    colocate,
    from_networkx,
    load_cluster,
    load_dnn_partitioning,
    load_graph,
    load_pipedream_profile,
    load_placement,
    load_placement_of_any_level,
    load_problem,
    nested_groupings,
    parse_cluster,
    save_cluster,
    save_graph,
    save_placement,
    save_problem,
    to_networkx,
)

ROUNDS = 250  # of each file and mutation
NUMBERS: list[Any] = [-1, 0, 1, 2**31, 2**63, 2**80, 0.5, -0.0, 1e308, float("nan"), float("inf")]
OTHERS: list[Any] = [None, True, "", "k80", "\x00\n", "\ud800", [], [[]], [1, "a"], {}, {"a": 1}]
STRANGE = [*NUMBERS, *OTHERS]


def flipped(content: bytes, generator: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
    return bytes(damaged)


def spliced(content: bytes, generator: random.Random) -> bytes:
    start, end = sorted(generator.randrange(len(content)) for _ in range(2))
    without = content[:start] + content[end:]
    return generator.choice([without, content[:start], content + content[start:end]])


def restructured(content: bytes, generator: random.Random) -> bytes:
    """Drop, retype, duplicate or add one field or element anywhere in a JSON or TOML document."""
    for parse, written in ((json.loads, json.dumps), (tomllib.loads, tomli_w.dumps)):
        with suppress(ValueError, TypeError):  # of another language; TOML has no None
            document = parse(content.decode())
            change(document, generator)
            return written(document).encode(errors="surrogatepass")
    return flipped(content, generator)


def change(document: Any, generator: random.Random) -> None:
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


MUTATIONS = (flipped, spliced, restructured)


def levelled_problem() -> PlacementProblem:
    """Return a chain of eight ops at the middle one of three levels, made by rules."""
    names = [f"op{op}" for op in range(8)]
    edges = [(op, op + 1) for op in range(7)]
    graph = plain_graph(names, range(7), [8] * 7, edges, waits=[[7, 0], [7, 2]], held_tensors=[3])
    levels = nested_groupings(graph, colocate(graph, rules=()), [2, 4, 6])
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster("2x(1xcpu+1xv100)", link="pcie-shared"),
        compute_time=np.ones((8, 4)),
        grouping=levels[1],
        hierarchy=levels,
        rules=("id", "scopes:decoder.step[0-9]"),
    )


def files(folder: Path) -> dict[Path, Callable[[Path], Any]]:
    """Return a file of each kind with all that one may have, and its reader."""
    problem = diamond_problem(
        graph=diamond(
            waits=[[2, 1]], held_tensors=[0], groups=[1, 2, 1, 1], dtype=["", "a", "", ""]
        ),
        compute_time=[[1, 1], [2, np.inf], [3, 3], [4, 4]],
    )
    levelled = levelled_problem()
    save_problem(problem, folder / "problem.json")
    save_problem(problem, folder / "problem.json.gz")
    save_problem(levelled, folder / "levels.json")
    save_graph(problem.graph, folder / "graph.json")
    save_cluster(replace(problem.cluster, kinds=(DEVICE_KINDS["k80"],)), folder / "cluster.toml")
    save_cluster(levelled.cluster, folder / "linked.toml")
    queue = f'{HEAD}latency = 1e-6\nqueue = "backward-first"\n'
    (folder / "machines.toml").write_text(LINKED.replace(HEAD, queue))
    (folder / "card.toml").write_text(CARD)
    (folder / "own.toml").write_text(OWN)
    save_placement(np.array([0, 0, 1, 1]), problem, folder / "placement.json")
    finest = levelled.at_level(2)
    save_placement(np.arange(6, dtype=np.int32) % 4, finest, folder / "finer.json")
    by_op = dict.fromkeys(levelled.graph.op_names, "cpu:0")
    (folder / "ops.json").write_text(json.dumps(by_op))
    (folder / "profile.txt").write_text(PROFILE)
    partitioning = DEVICES | {"nodes": NODES, "edges": EDGES}
    (folder / "partitioning.json").write_text(json.dumps(partitioning))

    def of_any_level(path: Path) -> Any:
        return load_placement_of_any_level(path, levelled)

    clusters = ("cluster", "linked", "machines", "card", "own")
    return {
        folder / "problem.json": load_problem,
        folder / "problem.json.gz": load_problem,
        folder / "levels.json": load_problem,
        folder / "graph.json": load_graph,
        **{folder / f"{name}.toml": load_cluster for name in clusters},
        folder / "placement.json": lambda path: load_placement(path, problem),
        folder / "finer.json": of_any_level,
        folder / "ops.json": of_any_level,
        folder / "profile.txt": load_pipedream_profile,
        folder / "partitioning.json": load_dnn_partitioning,
    }


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_damaged_file_is_an_object_or_one_line(
    tmp_path: Path, mutation: Callable[[bytes, random.Random], bytes]
) -> None:
    generator = random.Random(mutation.__name__)  # noqa: S311
    for path, load in files(tmp_path).items():
        load(path)
        content, refused = path.read_bytes(), 0
        for _ in range(ROUNDS):
            path.write_bytes(mutation(content, generator))
            try:
                load(path)
            except GraphError as error:
                refused += 1
                assert str(error).startswith(f"{path}: ")
                assert "\n" not in str(error)
        assert refused > ROUNDS // 4


def test_every_damaged_networkx_graph_is_a_graph_or_one_line() -> None:
    generator = random.Random(0)  # noqa: S311
    strange = [*STRANGE, object(), ("x", [1]), np.array([1, 2]), {1: [2]}, Path(".")]
    refused = 0
    for _ in range(4 * ROUNDS):
        graph = to_networkx(levelled_problem().graph)
        holders = [attributes for _, attributes in graph.nodes(data=True)]
        holders += [attributes for *_, attributes in graph.edges(data=True)]
        holder = generator.choice(holders)
        key = generator.choice(list(holder))
        value = generator.choice(strange)
        within = isinstance(holder[key], tuple) and generator.random() < 0.5
        holder[key] = (value,) if within else value
        try:
            from_networkx(graph)
        except GraphError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 2 * ROUNDS
