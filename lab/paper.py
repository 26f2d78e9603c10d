"""Addanki et al. 2019 in plain PyTorch, with the names of the paper: begin to read here.

The parts stand in the order of sections 3 and 4 and of appendix A: the state, the message passing,
the summaries, the policy, REINFORCE. Nothing is batched, and nothing is shared with
`placeto_policy`, which `test_paper.py` compares with this file.

    python lab/paper.py nmt-2 --episodes 80
"""

import argparse
from collections import deque
from collections.abc import Callable, Sequence

import networkx as nx
import numpy as np
import torch
from torch import Tensor, nn

from placeto import read_problem
from placeto_graphs import Evaluator
from placeto_simulator import Simulator

DIRECTIONS = 2  # of messages: along the edges, and against them
SUMMARIES = 3  # of parents, children and parallel groups


class Graph:
    """The graph G(V, E) of op groups, and R(p), the memory-penalised runtime of a placement."""

    def __init__(self, evaluator: Evaluator) -> None:
        groups = evaluator.problem.group_graph
        edges = nx.DiGraph(groups.edges.tolist())
        edges.add_nodes_from(range(groups.num_groups))
        self.V = list(nx.lexicographical_topological_sort(edges))  # the order of visits
        self.num_devices = evaluator.problem.num_devices
        self.neighbours = [
            [list(edges.predecessors(v)) for v in range(len(self.V))],
            [list(edges.successors(v)) for v in range(len(self.V))],
        ]
        parents = [nx.ancestors(edges, v) for v in range(len(self.V))]
        children = [nx.descendants(edges, v) for v in range(len(self.V))]
        self.summarised = [
            [parents[v], children[v], set(self.V) - parents[v] - children[v] - {v}]
            for v in range(len(self.V))
        ]
        self.edges_per_group = edges.number_of_edges() / len(self.V)
        self.run_time = groups.compute_time.mean(axis=1) / groups.compute_time.mean(axis=1).max()
        self.output_size = groups.output_bytes / max(groups.output_bytes.max(), 1)
        self._evaluator = evaluator

    def R(self, p: Sequence[int]) -> float:  # noqa: N802 (the paper's name)
        """Return r + c x: the runtime in seconds, and 2 s for each GB that a device lacks."""
        batch = self._evaluator.evaluate(np.array([p], np.int32))
        excess = batch.peak_memory[0] - self._evaluator.problem.cluster.memory_bytes
        return float(batch.runtime[0] + 2 * max(0, excess.max()) / 1e9)


class Policy(nn.Module):
    """pi(a | s): section 3.2.

    ``residual`` takes the messages of `placeto_policy.Settings(messages="residual")`, which the
    paper does not have.
    """

    def __init__(self, num_devices: int, k: int = 8, hidden: int = 512, *, residual: bool = False):
        super().__init__()
        self.k, self.residual = k, residual
        width = num_devices + 4
        self.f = nn.ModuleList(nn.Linear(width, width) for _ in range(DIRECTIONS))
        self.g = nn.ModuleList(nn.Linear(width, width) for _ in range(DIRECTIONS))
        width *= DIRECTIONS
        self.l = nn.ModuleList(nn.Linear(width, width) for _ in range(SUMMARIES))
        self.h = nn.ModuleList(nn.Linear(width, width) for _ in range(SUMMARIES))
        self.hidden = nn.Linear((1 + SUMMARIES) * width, hidden)
        self.output = nn.Linear(hidden, num_devices)
        for name, parameter in self.named_parameters():
            nn.init.zeros_(parameter) if "bias" in name else nn.init.xavier_uniform_(parameter)

    def forward(self, graph: Graph, e: list[Tensor], v: int) -> Tensor:
        """Return log pi, [D], for the current group v and the features e of all groups."""
        both = zip(*(self.pass_messages(graph, e, i) for i in range(DIRECTIONS)), strict=True)
        x = [torch.cat(vectors) for vectors in both]
        scale = len(x) ** -0.5 if self.residual else 1.0
        summaries = []
        for l_i, h_i, groups in zip(self.l, self.h, graph.summarised[v], strict=True):
            total = sum((l_i(x[u]).relu() for u in groups), torch.zeros_like(x[v]))
            summaries.append(h_i(scale * total).relu())
        hidden = self.hidden(torch.cat([x[v], *summaries])).relu()
        log_pi: Tensor = self.output(hidden).log_softmax(dim=0)
        return log_pi

    def pass_messages(self, graph: Graph, e: list[Tensor], direction: int) -> list[Tensor]:
        """Return x after k rounds of x_v <- g(sum of f(x_u) over the neighbours u)."""
        f, g, neighbours = self.f[direction], self.g[direction], graph.neighbours[direction]
        scale = min(1.0, 1 / max(graph.edges_per_group, 1e-9)) if self.residual else 1.0
        x = e
        for _ in range(self.k):
            messages = [f(vector).relu() for vector in x]
            x = [
                g(scale * sum((messages[u] for u in neighbours[v]), torch.zeros_like(e[v]))).relu()
                for v in range(len(e))
            ]
            if self.residual:
                x = [first + vector for first, vector in zip(e, x, strict=True)]
        return x


def features(graph: Graph, p: Sequence[int], current: int, visited: set[int]) -> list[Tensor]:
    """Return e_v of each group: run time, output size, device, is current, is visited."""
    e = []
    for v in range(len(graph.V)):
        device = [p[v] == d for d in range(graph.num_devices)]
        costs = [graph.run_time[v], graph.output_size[v]]
        e.append(torch.tensor([*costs, *device, v == current, v in visited], dtype=torch.float32))
    return e


Choice = Callable[[int, Tensor], int]  # of a device, by the time step t and log pi


def sample(_: int, log_pi: Tensor) -> int:
    """Return a device with its probability."""
    return int(torch.multinomial(log_pi.exp(), 1))


def run_episode(
    policy: Policy, graph: Graph, choose: Choice = sample
) -> tuple[list[float], list[int], list[Tensor]]:
    """Return the rewards, the actions and log pi of one episode, which visits each group once."""
    p = [0] * len(graph.V)
    runtime = graph.R(p)
    rewards, actions, log_pis = [], [], []
    for t, v in enumerate(graph.V):
        log_pi = policy(graph, features(graph, p, v, set(graph.V[:t])), v)
        p[v] = choose(t, log_pi.detach())
        before, runtime = runtime, graph.R(p)
        rewards.append(before - runtime)
        actions.append(p[v])
        log_pis.append(log_pi)
    return rewards, actions, log_pis


class Reinforce:
    """REINFORCE: appendix A. Rates and weights decay linearly over ``updates``."""

    def __init__(self, policy: Policy, graph: Graph, updates: int, k_b: int = 10) -> None:
        self.policy, self.graph, self.updates = policy, graph, updates
        self.baseline: deque[Tensor] = deque(maxlen=k_b)  # mean returns of the last rounds, [T]
        self.optimizer = torch.optim.Adam(policy.parameters())
        self.count = 0

    def update(self, choices: Sequence[Choice] = (sample,) * 8) -> tuple[float, float]:
        """Run one episode by each choice and take a step; return their mean reward and entropy."""
        episodes = [run_episode(self.policy, self.graph, choose) for choose in choices]
        returns = torch.tensor([rewards for rewards, _, _ in episodes], dtype=torch.float64)
        returns = returns.flip(1).cumsum(1).flip(1)  # of step t: the rewards from t on
        rounds = self.baseline or returns
        advantages = returns - torch.stack(list(rounds)).mean(dim=0)
        self.baseline.append(returns.mean(dim=0))
        objective, entropy = torch.tensor(0.0), torch.tensor(0.0)
        for (_, actions, log_pis), episode_advantages in zip(episodes, advantages, strict=True):
            for action, log_pi, advantage in zip(actions, log_pis, episode_advantages, strict=True):
                objective = objective + advantage.float() * log_pi[action]
                entropy = entropy - (log_pi.exp() * log_pi).sum()
        self.optimizer.zero_grad()
        loss = -(objective + self.decayed(1e-4, 1e-6) * entropy)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.25)
        self.optimizer.param_groups[0]["lr"] = self.decayed(1e-3, 1e-4)
        self.optimizer.step()
        self.count += 1
        steps = len(episodes) * len(self.graph.V)
        return float(returns[:, 0].mean()), entropy.item() / steps

    def decayed(self, start: float, end: float) -> float:
        """Return what decays from start to end over all updates."""
        return start + (end - start) * min(1.0, self.count / max(1, self.updates - 1))


def main() -> None:
    """Train on a model, and print each update."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", help="model of `placeto build`, such as nmt-2")
    parser.add_argument("--episodes", type=int, default=80, help="number of episodes")
    parser.add_argument("--groups", type=int, default=16, help="number of groups")
    options = parser.parse_args()
    graph = Graph(Simulator(read_problem(options.model, "2xk80", num_groups=options.groups)))
    torch.manual_seed(0)
    trainer = Reinforce(Policy(graph.num_devices), graph, updates=options.episodes // 8)
    print(f"all groups on one device: {graph.R([0] * len(graph.V)):.4g} s")
    for count in range(options.episodes // 8):
        improvement, entropy = trainer.update()
        print(f"update {count + 1}: improvement {improvement:.4g} s, entropy {entropy:.3f}")


if __name__ == "__main__":
    main()
