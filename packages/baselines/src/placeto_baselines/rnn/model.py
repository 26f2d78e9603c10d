"""The sequence-to-sequence policy: bidirectional encoder, attention, decoder."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.nn.utils.rnn import pad_packed_sequence

from placeto_baselines.rnn.graphs import GraphBatch
from placeto_baselines.rnn.settings import RnnSettings


@dataclass(frozen=True, eq=False)
class Encoded:
    """What the encoder makes of N graphs of up to L groups.

    Attributes
    ----------
    states : float32[N, L, H]
        The encoder's state at each group; zero where padded.
    keys : float32[N, L, H]
        What the attention compares with.
    hidden, cell : float32[N, H]
        The last states of both directions, from which the decoder starts.
    graphs : `GraphBatch`
        The graphs.
    """

    states: Tensor
    keys: Tensor
    hidden: Tensor
    cell: Tensor
    graphs: GraphBatch


class PlacementModel(nn.Module):
    """The policy of Mirhoseini et al. (2017, figure 2): a device for each group in turn.

    An LSTM in both directions reads the groups. Another writes their devices, one at a time: it
    starts from the encoder's last states, its input is the embedding of the device of the group
    before, and it attends to the encoder's states by their content (Bahdanau et al. 2015). The
    logits are ``C tanh(logits / T)``; a device that cannot run a group gets no probability.

    Parameters
    ----------
    num_features
        F, the length of the vector of a group.
    num_devices
        D, the number of devices.
    settings
        The sizes and constants.
    generator
        The source of the initial weights: Glorot's uniform distribution, biases 0, those of the
        forget gates ``settings.forget_bias``.
    """

    def __init__(
        self,
        num_features: int,
        num_devices: int,
        settings: RnnSettings,
        generator: torch.Generator,
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

    def attention(self, encoded: Encoded, hidden: Tensor) -> Tensor:
        """Return float32[N, B, L], how much each group counts; 0 where padded, in sum 1.

        Parameters
        ----------
        encoded
            N graphs.
        hidden : float32[N, B, H]
            A state of the decoder for each of B samples.
        """
        query = self.attention_query(hidden)[:, :, None]
        scores: Tensor = self.attention_score(torch.tanh(encoded.keys[:, None] + query))
        padded = ~encoded.graphs.mask[:, None]
        return scores.squeeze(-1).masked_fill(padded, -torch.inf).softmax(dim=-1)

    def logits(self, encoded: Encoded, hidden: Tensor, place: int) -> Tensor:
        """Return float32[N, B, D], the logits of the devices of the group at one place."""
        context = self.attention(encoded, hidden) @ encoded.states
        raw = self.device_logits(torch.cat([hidden, context], dim=-1))
        bounded = self.settings.tanh_constant * torch.tanh(raw / self.settings.temperature)
        allowed = encoded.graphs.allowed[:, place, None]
        return bounded.masked_fill(~allowed, -torch.inf)

    @torch.no_grad()
    def sample(
        self, graphs: GraphBatch, samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw placements, group by group.

        Returns
        -------
        int64[N, B, L]
            The device of each group; of no meaning where padded.
        float32[N, B]
            The log-probability of each placement.
        """

        def draw(logits: Tensor) -> Tensor:
            flat = logits.flatten(0, 1).softmax(dim=-1)
            return torch.multinomial(flat, 1, generator=generator).view(logits.shape[:2])

        return self._write(graphs, samples, draw)

    @torch.no_grad()
    def most_likely(self, graphs: GraphBatch) -> Tensor:
        """Return int64[N, L], the likeliest device of each group, given those before."""
        devices, _ = self._write(graphs, 1, lambda logits: logits.argmax(dim=-1))
        return devices[:, 0]

    def log_probability(self, graphs: GraphBatch, devices: Tensor) -> Tensor:
        """Return float32[N, B], the log-probability of placements, by teacher forcing.

        Parameters
        ----------
        graphs
            N graphs.
        devices : int64[N, B, L]
            The device of each group of B placements.
        """
        encoded = self.encode(graphs)
        rows, samples, length = devices.shape
        start = torch.full((rows, samples, 1), self.num_devices)
        inputs = self.device_embedding(torch.cat([start, devices[:, :, :-1]], dim=-1))
        hidden, _ = self.decoder(inputs.flatten(0, 1), _start(encoded, samples))
        hidden = hidden.view(rows, samples, length, -1)
        total = torch.zeros(rows, samples)
        for place in range(length):
            logits = self.logits(encoded, hidden[:, :, place], place)
            total = total + _log_probability(logits, devices[:, :, place], encoded, place)
        return total

    def _write(
        self, graphs: GraphBatch, samples: int, choose: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        encoded = self.encode(graphs)
        rows, length = graphs.vectors.shape[:2]
        state = _start(encoded, samples)
        last = torch.full((rows, samples), self.num_devices)
        total = torch.zeros(rows, samples)
        devices = torch.empty((rows, samples, length), dtype=torch.int64)
        for place in range(length):
            signal = self.device_embedding(last).flatten(0, 1)[:, None]
            hidden, state = self.decoder(signal, state)
            logits = self.logits(encoded, hidden.view(rows, samples, -1), place)
            last = devices[:, :, place] = choose(logits)
            total += _log_probability(logits, last, encoded, place)
        return devices, total

    def _draw_weights(self, generator: torch.Generator) -> None:
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.xavier_uniform_(weight, generator=generator)
            else:
                nn.init.zeros_(weight)
                if "bias_ih" in name:  # PyTorch orders the gates: input, forget, cell, output
                    quarter = len(weight) // 4
                    nn.init.constant_(
                        weight.detach()[quarter : 2 * quarter], self.settings.forget_bias
                    )


def _start(encoded: Encoded, samples: int) -> tuple[Tensor, Tensor]:
    """Return two float32[1, N B, H], the decoder's first states for B samples of each graph."""
    hidden, cell = (
        state.repeat_interleave(samples, dim=0)[None] for state in (encoded.hidden, encoded.cell)
    )
    return hidden, cell


def _log_probability(logits: Tensor, devices: Tensor, encoded: Encoded, place: int) -> Tensor:
    """Return float32[N, B], of the devices of the group at one place; 0 where it is padded."""
    chosen = logits.log_softmax(dim=-1).gather(-1, devices[..., None]).squeeze(-1)
    return torch.where(encoded.graphs.mask[:, place, None], chosen, 0.0)
