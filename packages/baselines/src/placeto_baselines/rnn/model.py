"""What the policy reads of graphs, and its network: encoder, attention, decoder."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from placeto_baselines.devices import allowed_devices
from placeto_baselines.errors import BaselineError
from placeto_baselines.rnn.settings import RnnSettings
from placeto_graphs import PlacementProblem

LARGEST = float(np.log1p(2.0**40))  # brings the logarithms of sizes below 1, up to a terabyte
CHUNK = 2**20  # numbers of attention that are worked on at once: what a processor's cache holds


@dataclass(frozen=True)
class GroupEmbedding:
    """Turns the groups of a graph into the sequence of vectors that the policy reads.

    The vector of a group has the fraction of its ops of each type, the logarithms of the sizes of
    its largest outputs, padded with zeros, and its neighbours in both directions (Mirhoseini et al.
    2017; 2018). Groups are ordered topologically, and if several are possible, by index. Neighbours
    are named by their place in that order: **the same graph with other group numbers may have
    another embedding, and get another placement**. That a policy should not depend on this is the
    point of Addanki et al. (2019).
    """

    op_types: tuple[str, ...]  # that are told apart; all others share a place
    max_groups: int  # of the longest sequence
    max_outputs: int  # sizes of outputs that are kept

    @classmethod
    def of_problems(
        cls, problems: Iterable[PlacementProblem], max_groups: int, max_outputs: int
    ) -> "GroupEmbedding":
        """Return the embedding that tells apart the op types of some problems."""
        op_types = {name for problem in problems for name in problem.graph.op_types}
        return cls(tuple(sorted(op_types)), max_groups, max_outputs)

    @property
    def num_features(self) -> int:  # F
        return len(self.op_types) + 1 + self.max_outputs + 2 * self.max_groups

    def vectors(self, problem: PlacementProblem) -> NDArray[np.float32]:
        """Return float32[G, F], the vectors of the groups in topological order."""
        graph, groups = problem.graph, problem.group_graph
        order, group_of = groups.topological_order, problem.grouping.group_of
        if len(order) > self.max_groups:
            raise BaselineError(
                f"problem: expected at most {self.max_groups} groups (max_groups), "
                f"got {len(order)}; merge them first"
            )
        column = {name: index for index, name in enumerate(self.op_types)}
        columns = np.array([column.get(name, len(column)) for name in graph.op_types])
        types = np.zeros((len(order), len(column) + 1))
        np.add.at(types, (group_of, columns), 1)
        types /= types.sum(axis=1, keepdims=True)
        sizes = np.zeros((len(order), self.max_outputs))
        filled = np.zeros(len(order), int)
        for tensor in np.argsort(-graph.tensor_bytes, kind="stable"):
            group = group_of[graph.tensor_producer[tensor]]
            if filled[group] < self.max_outputs:
                sizes[group, filled[group]] = np.log1p(graph.tensor_bytes[tensor]) / LARGEST
                filled[group] += 1
        sources, readers = np.argsort(order)[groups.edges.T]
        reads, sends = np.zeros((2, len(order), self.max_groups))
        reads[readers, sources] = 1
        sends[sources, readers] = 1
        features = [types[order], sizes[order], reads, sends]
        return np.concatenate(features, axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """N graphs as sequences of up to L groups; shorter ones are padded at their end."""

    vectors: Tensor  # float32[N, L, F], the embedding of each group; zero where padded
    lengths: Tensor  # int64[N]
    allowed: Tensor  # bool[N, L, D], where each group can run; true where padded

    @property
    def mask(self) -> Tensor:
        """bool[N, L], true where there is a group."""
        places = torch.arange(self.vectors.shape[1])
        return places < self.lengths[:, None]

    def rows(self, rows: Sequence[int]) -> "GraphBatch":
        """Return some of the graphs, as long as the longest of them."""
        index = torch.as_tensor(rows)
        longest = int(self.lengths[index].max())
        return GraphBatch(
            self.vectors[index, :longest], self.lengths[index], self.allowed[index, :longest]
        )


def batch_of(problems: Sequence[PlacementProblem], embedding: GroupEmbedding) -> GraphBatch:
    """Return the graphs of some problems on equally many devices as one batch."""
    lengths = [problem.num_groups for problem in problems]
    shape = (len(problems), max(lengths))
    vectors = np.zeros((*shape, embedding.num_features), np.float32)
    allowed = np.ones((*shape, problems[0].num_devices), np.bool_)
    for row, problem in enumerate(problems):
        vectors[row, : lengths[row]] = embedding.vectors(problem)
        order = problem.group_graph.topological_order
        allowed[row, : lengths[row]] = allowed_devices(problem)[order]
    return GraphBatch(torch.from_numpy(vectors), torch.tensor(lengths), torch.from_numpy(allowed))


def placements_of(problem: PlacementProblem, devices: Tensor) -> NDArray[np.int32]:
    """Return int32[B, G], placements, for int64[B, L], devices in the order of the sequence."""
    order = problem.group_graph.topological_order
    placements = np.empty((len(devices), problem.num_groups), np.int32)
    placements[:, order] = devices[:, : problem.num_groups].numpy()
    return placements


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encodings of N graphs of up to L groups."""

    states: Tensor  # float32[N, L, H], at each group; zero where padded
    keys: Tensor  # float32[N, L, H], which the attention compares with
    hidden: Tensor  # float32[N, H], the last states of both directions: the decoder starts there
    cell: Tensor
    graphs: GraphBatch


@dataclass(frozen=True, eq=False)
class Written:
    """B placements of each of N graphs, and what writing them computed."""

    devices: Tensor  # int64[N, B, L]; of no meaning where padded
    scores: Tensor  # float32[N, B, L, L], of the attention of each place


class AttentionScores(torch.autograd.Function):
    """``v . tanh(keys + queries)`` of Bahdanau et al. (2015), with a gradient that keeps little.

    Between L groups and M states there are ``M L H`` hyperbolic tangents, 8 million for each sample
    of 128 groups. Autograd would keep them; here they are made again for the gradient. ``tanh x``
    is ``2 s(2 x) - 1`` with the logistic function ``s``, several times as fast on some processors.
    """

    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, queries: Tensor, weight: Tensor, computed_scores: Any
    ) -> Tensor:
        """Return float32[N, M, L] for keys[N, L, H], queries[N, M, H] and weight[H].

        They are ``computed_scores``, if these were computed before.
        """
        ctx.save_for_backward(keys, queries, weight)
        if computed_scores is not None:
            return torch.as_tensor(computed_scores)
        scores = keys.new_empty(*queries.shape[:2], keys.shape[1])
        for graph, chunk, logistic in _logistics(keys, queries):
            torch.matmul(logistic, weight, out=scores[graph, chunk])
        return scores.mul_(2).sub_(weight.sum())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        keys, queries, weight = ctx.saved_tensors
        by_scores = gradients[0].contiguous()
        by_keys, by_queries = torch.zeros_like(keys), torch.empty_like(queries)
        by_weight = torch.zeros_like(weight)
        for graph, chunk, logistic in _logistics(keys, queries):
            chunk_gradients = by_scores[graph, chunk]
            by_weight += chunk_gradients.flatten() @ logistic.flatten(0, 1)
            # s (1 - s) times the gradient, in the place of s
            slope = torch.ops.aten.sigmoid_backward.grad_input(
                chunk_gradients[:, :, None].expand_as(logistic), logistic, grad_input=logistic
            )
            by_keys[graph] += slope.sum(dim=0)
            torch.sum(slope, dim=1, out=by_queries[graph, chunk])
        by_weight.mul_(2).sub_(by_scores.sum())
        return by_keys.mul_(4 * weight), by_queries.mul_(4 * weight), by_weight, None


def _logistics(keys: Tensor, queries: Tensor) -> Iterator[tuple[int, slice, Tensor]]:
    """Yield ``s(2 (keys + queries))`` of some queries of a graph at a time; each in one memory."""
    num_graphs, length, size = keys.shape
    at_once = max(1, CHUNK // (length * size))
    twice_keys, twice_queries = 2 * keys, 2 * queries[:, :, None]
    memory = keys.new_empty(min(at_once, queries.shape[1]), length, size)
    for graph in range(num_graphs):
        for first in range(0, queries.shape[1], at_once):
            chunk = slice(first, first + at_once)
            chunk_queries = twice_queries[graph, chunk]
            total = torch.add(chunk_queries, twice_keys[graph], out=memory[: len(chunk_queries)])
            yield graph, chunk, total.sigmoid_()


class PlacementModel(nn.Module):
    """The policy of Mirhoseini et al. (2017, figure 2): a device for each group in turn.

    An LSTM in both directions encodes the groups. Another decodes their devices, one at a time. It
    starts from the encoder's last states, its input is the embedding of the device of the previous
    group, and it attends to the encoder's states by their content (Bahdanau et al. 2015). The
    logits are ``C tanh(logits / T)``; a device that cannot run a group gets no probability. Initial
    weights are of Glorot's uniform distribution, biases 0, those of the forget gates
    ``settings.forget_bias``.
    """

    def __init__(
        self, num_features: int, num_devices: int, settings: RnnSettings, generator: torch.Generator
    ) -> None:
        super().__init__()
        size = settings.hidden_size
        self.settings = settings
        self.num_devices = num_devices
        # On no device first: PyTorch would draw weights from its global source of randomness.
        with torch.device("meta"):
            self.encoder = nn.LSTM(num_features, size // 2, bidirectional=True, batch_first=True)
            self.decoder = nn.LSTM(size, size, batch_first=True)
            self.device_embedding = nn.Embedding(num_devices + 1, size)  # the last one starts
            self.attention_key = nn.Linear(size, size, bias=False)
            self.attention_query = nn.Linear(size, size, bias=False)
            self.attention_score = nn.Linear(size, 1, bias=False)
            self.device_logits = nn.Linear(2 * size, num_devices, bias=False)
        self.to_empty(device="cpu")
        self._draw_weights(generator)

    def encode(self, graphs: GraphBatch) -> Encoded:
        """Return what the encoder makes of some graphs."""
        packed = pack_padded_sequence(
            graphs.vectors, graphs.lengths, batch_first=True, enforce_sorted=False
        )
        packed_states, (hidden, cell) = self.encoder(packed)
        states, _ = pad_packed_sequence(
            packed_states, batch_first=True, total_length=graphs.vectors.shape[1]
        )
        both = [state.transpose(0, 1).flatten(1) for state in (hidden, cell)]
        return Encoded(states, self.attention_key(states), both[0], both[1], graphs)

    def attention(
        self, encoded: Encoded, hidden: Tensor, computed_scores: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return float32[N, M, L] twice: how much each group counts, in sum 1, and its score.

        They are those of M states of the decoder for each graph, float32[N, M, H]. Scores that have
        been computed before can be given.
        """
        scores: Tensor = AttentionScores.apply(  # type: ignore[no-untyped-call]
            encoded.keys,
            self.attention_query(hidden),
            self.attention_score.weight[0],
            computed_scores,
        )
        padded = ~encoded.graphs.mask[:, None]
        return scores.masked_fill(padded, -torch.inf).softmax(dim=-1), scores

    def logits(self, encoded: Encoded, hidden: Tensor, weights: Tensor) -> Tensor:
        """Return float32[N, M, D], the logits of devices before some are ruled out.

        ``hidden`` float32[N, M, H] are states of the decoder, ``weights`` float32[N, M, L] their
        attention.
        """
        raw = self.device_logits(torch.cat([hidden, weights @ encoded.states], dim=-1))
        return self.settings.tanh_constant * torch.tanh(raw / self.settings.temperature)

    @torch.no_grad()
    def sample(self, encoded: Encoded, samples: int, generator: torch.Generator) -> Written:
        """Draw placements of some graphs, group by group."""

        def draw(logits: Tensor) -> Tensor:
            flat = logits.flatten(0, 1).softmax(dim=-1)
            return torch.multinomial(flat, 1, generator=generator).view(logits.shape[:2])

        return self._write(encoded, samples, draw)

    @torch.no_grad()
    def most_likely(self, encoded: Encoded) -> Tensor:
        """Return int64[N, L], the likeliest device of each group, given those before."""
        return self._write(encoded, 1, lambda logits: logits.argmax(dim=-1)).devices[:, 0]

    def log_probabilities(
        self, encoded: Encoded, devices: Tensor, written: Written | None = None
    ) -> Tensor:
        """Return float32[N, B, L, D], the log-probability of each device, given those before.

        They are computed by teacher forcing. ``written`` has the scores of attention, if this
        policy wrote these placements with the weights that it has now.
        """
        num_graphs, samples, length = devices.shape
        start = torch.full((num_graphs, samples, 1), self.num_devices)
        inputs = torch.cat([start, devices[:, :, :-1]], dim=-1).flatten(0, 1)
        states, _ = self.decoder(self.device_embedding(inputs), _start(encoded, samples))
        # [N B, L, H] to [N, B L, H]: all states of a graph attend to it at once
        hidden = states.reshape(num_graphs, samples * length, -1)
        scores = None if written is None else written.scores.flatten(1, 2)
        weights, _ = self.attention(encoded, hidden, scores)
        logits = self.logits(encoded, hidden, weights).view(num_graphs, samples, length, -1)
        allowed = encoded.graphs.allowed[:, None]
        return logits.masked_fill(~allowed, -torch.inf).log_softmax(dim=-1)

    def _write(self, encoded: Encoded, samples: int, choose: Callable[[Tensor], Tensor]) -> Written:
        num_graphs, length = encoded.states.shape[:2]
        state = _start(encoded, samples)
        scores = torch.empty(num_graphs, samples, length, length)
        devices = torch.empty((num_graphs, samples, length), dtype=torch.int64)
        last = torch.full((num_graphs, samples), self.num_devices)
        for place in range(length):
            hidden, state = self.decoder(self.device_embedding(last.view(-1, 1)), state)
            hidden = hidden.view(num_graphs, samples, -1)
            weights, scores[:, :, place] = self.attention(encoded, hidden)
            logits = self.logits(encoded, hidden, weights)
            allowed = encoded.graphs.allowed[:, place, None]
            last = devices[:, :, place] = choose(logits.masked_fill(~allowed, -torch.inf))
        return Written(devices, scores)

    def _draw_weights(self, generator: torch.Generator) -> None:
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.xavier_uniform_(weight, generator=generator)
            else:
                nn.init.zeros_(weight)
                # PyTorch orders the gates: input, forget, cell, output; its LSTM has two biases.
                if "bias_hh" not in name:
                    quarter = len(weight) // 4
                    nn.init.constant_(
                        weight.detach()[quarter : 2 * quarter], self.settings.forget_bias
                    )


def _start(encoded: Encoded, samples: int) -> tuple[Tensor, Tensor]:
    """Return two float32[1, N B, H], the decoder's first states for B samples of each graph."""
    first, cell = (
        x.repeat_interleave(samples, dim=0)[None] for x in (encoded.hidden, encoded.cell)
    )
    return first, cell


def entropy(log_probabilities: Tensor, encoded: Encoded) -> Tensor:
    """Return float32[N, B], the sum over groups of the entropy of where each is put.

    The log-probabilities float32[N, B, L, D] are those of `PlacementModel.log_probabilities`.
    """
    counts = encoded.graphs.mask[..., None] & encoded.graphs.allowed
    finite = log_probabilities.masked_fill(~counts[:, None], 0.0)
    return -(finite * finite.exp()).sum(dim=(-1, -2))


def chosen(log_probabilities: Tensor, devices: Tensor, encoded: Encoded) -> Tensor:
    """Return float32[N, B], the log-probability of placements int64[N, B, L] of N graphs."""
    picked = log_probabilities.gather(-1, devices[..., None]).squeeze(-1)
    return picked.where(encoded.graphs.mask[:, None], 0.0).sum(dim=-1)
