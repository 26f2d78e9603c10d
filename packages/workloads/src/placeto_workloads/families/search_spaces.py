"""The two search spaces of ENAS as sequences of decisions (Pham et al. 2018, sections 2.1, 2.4).

A controller makes one decision after the other, each among a fixed number of choices. The numbers
that it chose are an architecture.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from placeto_workloads.errors import WorkloadError
from placeto_workloads.models.cell_architecture import (
    Activation,
    Block,
    ConvolutionalArchitecture,
    ConvolutionalCell,
    Operation,
    RecurrentCell,
    cell_with_loose_ends,
    check_index,
)
from placeto_workloads.models.training_step import whole_number

Architecture = RecurrentCell | ConvolutionalArchitecture
ACTIVATIONS = tuple(Activation)
MICRO_OPERATIONS = (
    Operation.IDENTITY,
    Operation.SEPARABLE_CONVOLUTION_3,
    Operation.SEPARABLE_CONVOLUTION_5,
    Operation.AVERAGE_POOL_3,
    Operation.MAX_POOL_3,
)


@dataclass(frozen=True)
class SearchSpace(ABC):
    """Architectures as sequences of choices, of cells of ``num_nodes`` nodes, at least 1."""

    num_nodes: int

    name: ClassVar[str]  # in files
    num_cells: ClassVar[int]  # of an architecture
    given_states: ClassVar[int]  # of a cell before its first node
    num_operations: ClassVar[int]  # that a node chooses from

    def __post_init__(self) -> None:
        whole_number("num_nodes", self.num_nodes)

    @property
    @abstractmethod
    def counts(self) -> tuple[int, ...]:
        """Numbers of choices of all decisions that make an architecture, in order."""

    @abstractmethod
    def architecture(self, choices: Sequence[int]) -> Architecture:
        """Return the architecture of choices, one for each decision."""

    @abstractmethod
    def uniform(self, generator: np.random.Generator) -> Architecture:
        """Return an architecture of which each choice is equally likely."""

    def check(self, choices: Sequence[int]) -> None:
        """Check the choices of an architecture."""
        if len(choices) != len(self.counts):
            raise WorkloadError(f"choices: expected {len(self.counts)}, got {len(choices)}")
        for place, (choice, count) in enumerate(zip(choices, self.counts, strict=True)):
            check_index(f"choices[{place}]", choice, count)


@dataclass(frozen=True)
class ConvolutionalSpace(SearchSpace):
    """The micro search space: a normal and a reduction cell, by default of 5 blocks each.

    Each block chooses two earlier states, then an operation on each.
    """

    num_nodes: int = 5

    name = "convolutional"
    num_cells = 2
    given_states = 2
    num_operations = len(MICRO_OPERATIONS)

    @property
    def counts(self) -> tuple[int, ...]:
        each_cell = range(self.given_states, self.given_states + self.num_nodes)
        operations = (self.num_operations,) * 2
        return tuple(n for states in each_cell for n in (states, states, *operations)) * 2

    def architecture(self, choices: Sequence[int]) -> ConvolutionalArchitecture:
        """Return the normal and the reduction cell; a block has left, right, their operations."""
        self.check(choices)
        blocks = tuple(_block(*choices[at : at + 4]) for at in range(0, len(choices), 4))
        normal, reduction = blocks[: self.num_nodes], blocks[self.num_nodes :]
        return ConvolutionalArchitecture(
            cell_with_loose_ends(normal), cell_with_loose_ends(reduction)
        )

    def uniform(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        return ConvolutionalArchitecture(self._cell(generator), self._cell(generator))

    def _cell(self, generator: np.random.Generator) -> ConvolutionalCell:
        blocks = []
        for states in range(self.given_states, self.given_states + self.num_nodes):
            left, right = (int(state) for state in generator.integers(states, size=2))
            blocks.append(_block(left, right, *generator.integers(self.num_operations, size=2)))
        return cell_with_loose_ends(tuple(blocks))


def _block(left: int, right: int, left_choice: int, right_choice: int) -> Block:
    return Block(left, MICRO_OPERATIONS[left_choice], right, MICRO_OPERATIONS[right_choice])


@dataclass(frozen=True)
class RecurrentSpace(SearchSpace):
    """The space of recurrent cells, by default of 12 nodes.

    Each node chooses an earlier node, then an activation. The first node reads the word and the
    last state, and chooses an activation alone.
    """

    num_nodes: int = 12

    name = "recurrent"
    num_cells = 1
    given_states = 0
    num_operations = len(ACTIVATIONS)

    @property
    def counts(self) -> tuple[int, ...]:
        others = (n for node in range(1, self.num_nodes) for n in (node, self.num_operations))
        return (self.num_operations, *others)

    def architecture(self, choices: Sequence[int]) -> RecurrentCell:
        self.check(choices)
        activations = tuple(ACTIVATIONS[choice] for choice in choices[::2])
        return RecurrentCell(activations, tuple(choices[1::2]))

    def uniform(self, generator: np.random.Generator) -> RecurrentCell:
        indices = generator.integers(self.num_operations, size=self.num_nodes)
        inputs = tuple(int(generator.integers(node)) for node in range(1, self.num_nodes))
        return RecurrentCell(tuple(ACTIVATIONS[index] for index in indices), inputs)


class ArchitectureSampler(Protocol):
    """Samples architectures of the ENAS search spaces, as an ENAS controller does."""

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        """Return a recurrent cell."""

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        """Return a normal and a reduction cell."""


@dataclass(frozen=True)
class UniformSampler:
    """An `ArchitectureSampler` to which every choice of the search space is equally likely.

    By default cells have 12 nodes, or 5 blocks, as in Pham et al. (2018), sections 3.1 and 3.2.
    """

    num_nodes: int = 12
    num_blocks: int = 5

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        return RecurrentSpace(self.num_nodes).uniform(generator)

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        return ConvolutionalSpace(self.num_blocks).uniform(generator)
