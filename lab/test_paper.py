"""`placeto_policy` trains as the plain method of `paper.py` does; figures of the paper."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import paper
import paper_figures
import pytest
import torch
from torch import Tensor

import placeto_policy.trainer
from placeto_graphs import PlacementProblem, from_networkx, parse_cluster
from placeto_policy import PlacementPolicy, Settings, Trainer, preset
from placeto_policy.episodes import Episodes, run_side_by_side
from placeto_policy.settings import MessageName
from placeto_simulator import Simulator

UPDATES = 4
K_B = 2  # rounds of the baseline, so that some are forgotten
WORKERS = 3


def dag_problem(seed: int, num_groups: int, num_devices: int) -> PlacementProblem:
    """Return a problem whose groups are in no special order."""
    generator = np.random.default_rng(seed)
    names = [f"op{index}" for index in generator.permutation(num_groups).tolist()]
    sizes = generator.integers(10**6, 10**8, num_groups).tolist()
    dag = nx.DiGraph()
    dag.add_nodes_from(f"op{index}" for index in range(num_groups))
    for reader in range(1, num_groups):
        for source in range(reader):
            if generator.random() < 0.25:
                dag.add_edge(names[source], names[reader], bytes=sizes[source])
    seconds = generator.uniform(0.01, 0.1, (num_groups, 1))
    return PlacementProblem(
        graph=from_networkx(dag),
        cluster=parse_cluster(f"{num_devices}xk80"),
        compute_time=np.tile(seconds, (1, num_devices)),
    )


def copy_weights(policy: PlacementPolicy, plain: paper.Policy) -> None:
    """Copy the weights of a policy of the package into the plain one."""
    weights = policy.state_dict()
    stacks = {
        "f": "embedding.message_passing.message",
        "g": "embedding.message_passing.update",
        "l": "embedding.summaries.each",
        "h": "embedding.summaries.whole",
    }
    named = {}
    for name, stack in stacks.items():
        for index in range(len(getattr(plain, name))):
            named[f"{name}.{index}.weight"] = weights[f"scores.{stack}_weight"][index]
            named[f"{name}.{index}.bias"] = weights[f"scores.{stack}_bias"][index]
    for name in ("hidden", "output"):
        named |= {f"{name}.{kind}": weights[f"scores.{name}.{kind}"] for kind in ("weight", "bias")}
    plain.load_state_dict(named)


class RecordedAdam(torch.optim.Adam):
    """Adam that keeps the last gradient."""

    gradient: Tensor

    def step(self, closure: Any = None) -> Any:
        (group,) = self.param_groups
        self.gradient = torch.cat([tensor.grad.flatten() for tensor in group["params"]])
        return super().step(closure)


def gradient_of(plain: paper.Policy) -> Tensor:
    """Return the gradient in the order of `PlacementPolicy.parameters`."""
    layers = [
        getattr(layer, kind)
        for name in "fglh"
        for kind in ("weight", "bias")
        for layer in getattr(plain, name)
    ]
    layers += [*plain.hidden.parameters(), *plain.output.parameters()]
    return torch.cat([parameter.grad.flatten() for parameter in layers])


def replay(actions: Sequence[int], log_pis: list[Tensor]) -> paper.Choice:
    """Return a choice that repeats actions, and keeps log pi of each step."""

    def choose(t: int, log_pi: Tensor) -> int:
        log_pis.append(log_pi)
        return actions[t]

    return choose


@pytest.fixture
def episodes_of_trainer(monkeypatch: pytest.MonkeyPatch) -> list[Episodes]:
    """Return a list that has the episodes of each update."""
    recorded: list[Episodes] = []

    def run(*arguments: Any) -> list[Episodes]:
        recorded.extend(run_side_by_side(*arguments))
        return recorded[-1:]

    monkeypatch.setattr(placeto_policy.trainer, "run_side_by_side", run)
    return recorded


def settings_of(messages: MessageName) -> Settings:
    return replace(
        preset("paper"),
        messages=messages,
        workers=WORKERS,
        updates=UPDATES,
        baseline_window=K_B,
        hidden_units=64,
    )


@pytest.mark.parametrize("messages", ["plain", "residual"])
@pytest.mark.parametrize(("num_groups", "num_devices"), [(8, 2), (10, 3)])
def test_the_package_trains_as_the_plain_method(
    messages: MessageName, num_groups: int, num_devices: int, episodes_of_trainer: list[Episodes]
) -> None:
    simulator = Simulator(dag_problem(num_groups, num_groups, num_devices), 1)
    trainer = Trainer([simulator], settings_of(messages), seed=1)
    trainer.optimizer = RecordedAdam(trainer.policy.parameters(), lr=1.0)
    graph = paper.Graph(simulator)
    plain = paper.Policy(num_devices, hidden=64, residual=messages == "residual")
    reinforce = paper.Reinforce(plain, graph, UPDATES, K_B)
    for count in range(UPDATES):
        copy_weights(trainer.policy, plain)
        rates = trainer.update()
        episodes = episodes_of_trainer[count]
        assert episodes.order.tolist() == [graph.V] * WORKERS

        log_pis: list[Tensor] = []
        choices = [replay(actions, log_pis) for actions in episodes.actions().tolist()]
        improvement, entropy = reinforce.update(choices)

        expected = torch.from_numpy(episodes.log_probabilities).flatten(0, 1)
        torch.testing.assert_close(torch.stack(log_pis), expected, rtol=0, atol=1e-5)
        assert improvement == pytest.approx(rates.reward, rel=1e-12, abs=1e-12)
        assert entropy == pytest.approx(rates.entropy, abs=1e-5)
        assert reinforce.optimizer.param_groups[0]["lr"] == rates.learning_rate
        gradient = gradient_of(plain)
        difference = gradient - trainer.optimizer.gradient
        assert gradient.norm() > 1e-4
        assert difference.norm() <= 1e-6 * gradient.norm()


def test_rewards_of_the_plain_method_are_those_of_the_package(
    episodes_of_trainer: list[Episodes],
) -> None:
    simulator = Simulator(dag_problem(3, 10, 2), 1)
    Trainer([simulator], settings_of("residual")).update()
    (episodes,) = episodes_of_trainer
    graph = paper.Graph(simulator)
    plain = paper.Policy(2, k=1, hidden=4)
    for rewards, actions in zip(episodes.rewards, episodes.actions().tolist(), strict=True):
        again, _, _ = paper.run_episode(plain, graph, replay(actions, []))
        assert again == rewards.tolist()
        assert sum(again) == pytest.approx(graph.R([0] * 10) - graph.R(actions_of(graph, actions)))


def actions_of(graph: paper.Graph, actions: list[int]) -> list[int]:
    """Return the placement of the actions, which come in the order of visits."""
    placement = [0] * len(graph.V)
    for v, device in zip(graph.V, actions, strict=True):
        placement[v] = device
    return placement


def test_features_and_neighbours_of_a_chain_that_forks() -> None:
    """Worked out by hand: a -> b, a -> c, c -> d, with seconds 1, 2, 4, 1 and 1 to 4 bytes."""
    fork = nx.DiGraph()
    for source, reader, size in (("a", "b", 1), ("a", "c", 1), ("c", "d", 4)):
        fork.add_edge(source, reader, bytes=size)
    graph = from_networkx(fork)
    seconds = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 1.0}
    problem = PlacementProblem(
        graph=graph,
        cluster=parse_cluster("2xk80"),
        compute_time=np.array([[seconds[name]] * 2 for name in graph.op_names]),
    )
    a, b, c, d = (problem.grouping.group_names.index(name) for name in "abcd")
    plain = paper.Graph(Simulator(problem, 1))
    assert plain.neighbours[0, c].nonzero().flatten().tolist() == [a]
    assert plain.neighbours[1, a].nonzero().flatten().tolist() == sorted([b, c])
    assert plain.summarised[:, c].argmax(dim=1).tolist() == [a, d, b]
    assert plain.summarised[:, c].sum(dim=1).tolist() == [1, 1, 1]
    p = [0, 0, 0, 0]
    p[a] = 1
    e = plain.e(p, c, [a, b])
    assert e[a].tolist() == [0.25, 0.25, 0.0, 1.0, 0.0, 1.0]
    assert e[c].tolist() == [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]
    assert e[d].tolist() == [0.25, 0.0, 1.0, 0.0, 0.0, 0.0]


def test_cells_of_an_unrolled_network_have_the_device_of_most_seconds() -> None:
    """Two ops of step 0, of 3 and 1 s, are apart; step 1 of the second layer does not exist."""
    chain = nx.path_graph(4, create_using=nx.DiGraph)
    nx.set_edge_attributes(chain, 1, "bytes")
    scopes = ("layer0.step0", "layer0.step0", "layer0.step1", "layer1.step0")
    graph = replace(from_networkx(nx.relabel_nodes(chain, str)), scopes=scopes)
    problem = PlacementProblem(
        graph=graph,
        cluster=parse_cluster("2xk80"),
        compute_time=np.tile(np.array([[3.0], [1.0], [1.0], [1.0]]), (1, 2)),
    )
    placement = np.array([1, 0, 0, 1], np.int32)
    layers, cells = paper_figures.unrolled(problem, placement)
    assert layers == ["layer0", "layer1"]
    assert cells.tolist() == [[1, 0], [1, paper_figures.NO_OPS]]
    axes = paper_figures.unrolled_figure(problem, placement, "chain").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == layers
    with pytest.raises(SystemExit, match="expected scopes"):
        paper_figures.unrolled(replace(problem, graph=replace(graph, scopes=("",) * 4)), placement)
