"""The embedding with a state after the other in front, as its formula has it: the oracle."""

import torch

from placeto_policy.embedding.message_passing import MessagePassing, PooledSummaries


def plain_messages(
    passing: MessagePassing,
    features: torch.Tensor,
    edges: torch.Tensor,
) -> torch.Tensor:
    """Return [2 F, G, N] for features [F, G, N] and edges int64[M, 2]."""
    num_groups = features.shape[1]
    is_residual = passing.messages == "residual"
    hears = torch.zeros(num_groups, num_groups)
    hears[edges[:, 1], edges[:, 0]] = (
        min(1.0, num_groups / max(1, len(edges))) if is_residual else 1.0
    )
    start = features.permute(2, 1, 0)
    results = []
    for direction, adjacency in enumerate((hears, hears.T)):
        nodes = start
        for _ in range(passing.rounds):
            linear = nodes @ passing.message_weight[direction].T + passing.message_bias[direction]
            heard = adjacency @ torch.relu(linear)
            updates = torch.relu(
                heard @ passing.update_weight[direction].T + passing.update_bias[direction]
            )
            nodes = start + updates if is_residual else updates
        results.append(nodes.permute(2, 1, 0))
    return torch.cat(results)


def plain_summaries(
    pooled: PooledSummaries, nodes: torch.Tensor, sets: torch.Tensor, current: torch.Tensor
) -> torch.Tensor:
    """Return [N, S W] for nodes [W, G, N]."""
    by_state = nodes.permute(2, 1, 0)
    results = []
    for index in range(len(pooled.each_bias)):
        each = torch.relu(by_state @ pooled.each_weight[index].T + pooled.each_bias[index])
        inside = (sets[current] == index).to(each.dtype)
        total = (each * inside[:, :, None]).sum(dim=1)
        if pooled.messages == "residual":
            total = total / nodes.shape[1] ** 0.5
        results.append(torch.relu(total @ pooled.whole_weight[index].T + pooled.whole_bias[index]))
    return torch.cat(results, dim=1)
