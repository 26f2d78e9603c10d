"""Addanki et al. 2019 in plain PyTorch, with the names of the paper: begin to read here.

The parts stand in the order of sections 3 and 4 and of appendix A: state, message passing and
summaries, policy, REINFORCE. Episodes run one after the other, and nothing is shared with
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


class Graph:
    """The graph G(V, E) of op groups, and R(p), the memory-penalised runtime of a placement."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator, groups = evaluator, evaluator.problem.group_graph
        G = nx.DiGraph(groups.edges.tolist())  # noqa: N806 (the paper's name)
        G.add_nodes_from(range(groups.num_groups))
        self.V = list(nx.lexicographical_topological_sort(G))  # the order of visits
        self.D = evaluator.problem.num_devices
        # Row v of a matrix has a 1 for each group whose vector counts for group v.
        edges, paths = (nx.to_numpy_array(g, sorted(G)) for g in (G, nx.transitive_closure(G)))
        parallel = 1 - paths - paths.T - np.eye(len(G))
        self.neighbours = torch.tensor(np.stack([edges.T, edges]), dtype=torch.float32)
        self.summarised = torch.tensor(np.stack([paths.T, paths, parallel]), dtype=torch.float32)
        run_time, output_size = groups.compute_time.mean(axis=1), groups.output_bytes
        self.costs = np.stack([run_time / run_time.max(), output_size / max(output_size.max(), 1)])

    def R(self, p: Sequence[int]) -> float:  # noqa: N802 (the paper's name)
        """Return r + c x: the runtime in seconds, and 2 s for each GB that a device lacks."""
        batch = self.evaluator.evaluate(np.array([p], np.int32))
        excess = batch.peak_memory[0] - self.evaluator.problem.cluster.memory_bytes
        return float(batch.runtime[0] + 2 * max(0, excess.max()) / 1e9)

    def e(self, p: Sequence[int], current: int, visited: Sequence[int]) -> Tensor:
        """Return [V, D + 4]: run time, output size, device, is current, is visited."""
        flags = [[v == current, v in visited] for v in range(len(self.V))]
        return torch.tensor(np.hstack([self.costs.T, np.eye(self.D)[p], flags])).float()


class Policy(nn.Module):
    """pi(a | s): section 3.2.

    ``residual`` takes the messages of `placeto_policy.Settings(messages="residual")`, which the
    paper does not have: features are added after each round, and sums are divided.
    """

    def __init__(self, D: int, k: int = 8, hidden: int = 512, *, residual: bool = False) -> None:  # noqa: N803
        super().__init__()
        self.k, self.residual = k, residual
        self.f, self.g = (layers(2, D + 4) for _ in range(2))  # along the edges, and against them
        self.l, self.h = (layers(3, 2 * (D + 4)) for _ in range(2))  # parents, children, parallel
        self.hidden, self.output = nn.Linear(8 * (D + 4), hidden), nn.Linear(hidden, D)
        for name, parameter in self.named_parameters():
            nn.init.zeros_(parameter) if "bias" in name else nn.init.xavier_uniform_(parameter)

    def forward(self, graph: Graph, e: Tensor, v: int) -> Tensor:
        """Return log pi, [D], for the current group v and the features e of all groups."""
        x = torch.cat([self.pass_messages(graph, e, direction) for direction in range(2)], dim=1)
        scale = len(x) ** -0.5 if self.residual else 1.0
        parts = zip(self.l, self.h, graph.summarised, strict=True)
        summaries = [h(scale * (groups[v] @ l(x).relu())).relu() for l, h, groups in parts]  # noqa: E741
        log_pi: Tensor = self.output(self.hidden(torch.cat([x[v], *summaries])).relu())
        return log_pi.log_softmax(dim=0)

    def pass_messages(self, graph: Graph, e: Tensor, direction: int) -> Tensor:
        """Return x, [V, D + 4], after k rounds of x_v <- g(sum of f(x_u) over neighbours u)."""
        f, g, neighbours = self.f[direction], self.g[direction], graph.neighbours[direction]
        scale = min(1.0, len(e) / max(float(neighbours.sum()), 1e-9)) if self.residual else 1.0
        x = e
        for _ in range(self.k):
            x = g(scale * (neighbours @ f(x).relu())).relu()
            x = e + x if self.residual else x
        return x


def layers(count: int, width: int) -> nn.ModuleList:
    """Return layers with as many outputs as inputs."""
    return nn.ModuleList(nn.Linear(width, width) for _ in range(count))


Choice = Callable[[int, Tensor], int]  # of a device, by the time step t and log pi


def sample(_: int, log_pi: Tensor) -> int:
    """Return a device with its probability."""
    return int(torch.multinomial(log_pi.exp(), 1))


Episode = tuple[list[float], list[int], list[Tensor]]  # rewards, actions, log pi of each step


def run_episode(policy: Policy, graph: Graph, choose: Choice = sample) -> Episode:
    """Visit each group once; the reward of a step is the seconds by which it lowers R."""
    p = [0] * len(graph.V)
    runtimes, log_pis = [graph.R(p)], []
    for t, v in enumerate(graph.V):
        log_pis.append(policy(graph, graph.e(p, v, graph.V[:t]), v))
        p[v] = choose(t, log_pis[-1].detach())
        runtimes.append(graph.R(p))
    rewards: list[float] = (-np.diff(runtimes)).tolist()
    return rewards, [p[v] for v in graph.V], log_pis


class Reinforce:
    """REINFORCE: appendix A. Rates and weights decay linearly over ``updates``."""

    def __init__(self, policy: Policy, graph: Graph, updates: int, k_b: int = 10) -> None:
        self.policy, self.graph, self.updates, self.count = policy, graph, updates, 0
        self.baseline: deque[Tensor] = deque(maxlen=k_b)  # mean returns of the last rounds, [T]
        self.optimizer = torch.optim.Adam(policy.parameters())

    def update(self, choices: Sequence[Choice] = (sample,) * 8) -> tuple[float, float]:
        """Run one episode by each choice and take a step; return their mean reward and entropy."""
        episodes = [run_episode(self.policy, self.graph, choose) for choose in choices]
        rewards = torch.tensor([rewards for rewards, _, _ in episodes], dtype=torch.float64)
        returns = rewards.flip(1).cumsum(1).flip(1)  # of step t: the rewards from t on
        advantages = (returns - torch.stack([*(self.baseline or returns)]).mean(dim=0)).float()
        self.baseline.append(returns.mean(dim=0))
        log_pi = torch.stack([torch.stack(log_pis) for _, _, log_pis in episodes])  # [B, T, D]
        actions = torch.tensor([actions for _, actions, _ in episodes])[..., None]
        objective = (advantages * log_pi.gather(2, actions)[..., 0]).sum()
        entropy = -(log_pi.exp() * log_pi).sum()
        self.optimizer.zero_grad()
        loss = -(objective + self.decayed(1e-4, 1e-6) * entropy)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.25)
        self.optimizer.param_groups[0]["lr"] = self.decayed(1e-3, 1e-4)
        self.optimizer.step()
        self.count += 1
        return float(returns[:, 0].mean()), entropy.item() / actions.numel()

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
    trainer = Reinforce(Policy(graph.D), graph, updates=options.episodes // 8)
    print(f"all groups on one device: {graph.R([0] * len(graph.V)):.4g} s")
    for count in range(options.episodes // 8):
        improvement, entropy = trainer.update()
        print(f"update {count + 1}: improvement {improvement:.4g} s, entropy {entropy:.3f}")


if __name__ == "__main__":
    main()
