"""The network that says what moves are worth, and its file."""

import os

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from move_values.features import FEATURES
from placeto_graphs import write_atomically
from placeto_policy.checkpoint import named, weights_like
from placeto_policy.errors import PolicyError

FORMAT, VERSION = "placeto-move-values", "1"  # the version counts up with changes of features

SMALLEST = 1e-4  # parts of the cost: gains below it are all about as little
MOST_OF_LOGARITHM = 4.0
WIDTH, NARROWER = 48, 32


class MoveValues(nn.Module):
    """Says what each move of a placement is worth, for any number and kind of devices.

    For each move it gives two numbers: ``log10(1 + gain / 1e-4)`` of its gain in parts of the cost,
    negative for a loss, and the logit of the probability that it gains at all. The moves of one
    group see the mean of what the network makes of them.

    Parameters
    ----------
    seed
        Of the first weights.

    Examples
    --------
    >>> values = MoveValues()
    >>> values(torch.zeros(5, 2, len(FEATURES))).shape
    torch.Size([5, 2, 2])
    >>> values.worth(np.zeros((5, 2, len(FEATURES)), np.float32)).shape
    (5, 2)
    """

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(FEATURES)))
        self.register_buffer("scale", torch.ones(len(FEATURES)))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Linear(len(FEATURES), WIDTH)
            self.own = nn.Linear(WIDTH, NARROWER)
            self.of_group = nn.Linear(WIDTH, NARROWER, bias=False)
            self.last = nn.Linear(NARROWER, NARROWER)
            self.output = nn.Linear(NARROWER, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return float32[G, D, 2] for features float32[G, D, F]."""
        hidden = torch.relu(self.first((features - self.mean) * self.scale))
        of_group = self.of_group(hidden.mean(dim=1, keepdim=True))
        hidden = torch.relu(self.own(hidden) + of_group)
        output: torch.Tensor = self.output(torch.relu(self.last(hidden)))
        return output

    @torch.no_grad()
    def worth(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return float64[G, D], the logarithm of the gain that each move promises."""
        gain, logit = self(torch.from_numpy(features)).double().numpy().transpose(2, 0, 1)
        promised = 10 ** np.clip(gain, 0, MOST_OF_LOGARITHM) - 1
        worth: NDArray[np.float64] = np.log(np.maximum(promised, 1e-3)) - np.logaddexp(0, -logit)
        return worth


def logarithm_of_gain(change: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what the network learns of a move that changes the cost by a part of it.

    Examples
    --------
    >>> logarithm_of_gain(np.array([-9e-4, 0.0, 9e-4]))
    array([ 1.,  0., -1.])
    """
    logarithm: NDArray[np.float64] = np.sign(-change) * np.log10(1 + np.abs(change) / SMALLEST)
    return logarithm


def save_move_values(values: MoveValues, path: str | os.PathLike[str]) -> None:
    """Write a network to a file, which is replaced at once.

    Examples
    --------
    >>> values = MoveValues(seed=1)
    >>> save_move_values(values, "values.safetensors")
    >>> torch.equal(load_move_values("values.safetensors").first.bias, values.first.bias)
    True
    """
    tensors = {name: tensor.contiguous() for name, tensor in values.state_dict().items()}
    write_atomically(path, save(tensors, {"format": FORMAT, "version": VERSION}))


def load_move_values(path: str | os.PathLike[str]) -> MoveValues:
    """Return the network of a file that `save_move_values` wrote.

    Raises
    ------
    PolicyError
        When the file is not one, is of another version, or its tensors are not those of a network.
    OSError
        When the file cannot be read.
    """
    with open(path, "rb"):
        pass  # a file that cannot be read is the system's error, not the format's
    with named(path):
        try:
            with safe_open(os.fspath(path), framework="pt") as file:
                found = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, UnicodeDecodeError) as error:
            raise PolicyError(f"expected a {FORMAT} file: {error}") from None
        for field, expected in (("format", FORMAT), ("version", VERSION)):
            if found.get(field) != expected:
                raise PolicyError(f"{field}: expected {expected!r}, got {found.get(field)!r}")
        values = MoveValues()
        values.load_state_dict(weights_like(values, tensors, ""))
    return values
