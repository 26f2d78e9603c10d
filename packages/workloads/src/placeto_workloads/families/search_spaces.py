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
    """Architectures as sequences of choices.

    Attributes
    ----------
    num_nodes
        Number of nodes of a cell, at least 1.

    Raises
    ------
    WorkloadError
        If ``num_nodes`` is no whole number of at least 1.
    """

    num_nodes: int

    name: ClassVar[str]  # in files
    num_cells: ClassVar[int]  # of an architecture
    num_input_states: ClassVar[int]  # of a cell before its first node
    num_operations: ClassVar[int]  # that a node chooses from

    def __post_init__(self) -> None:
        whole_number("num_nodes", self.num_nodes)

    @property
    @abstractmethod
    def counts(self) -> tuple[int, ...]:
        """Numbers of choices of all decisions that make an architecture, in order."""

    @abstractmethod
    def architecture(self, choices: Sequence[int]) -> Architecture:
        """Return the architecture of choices, one for each decision.

        Parameters
        ----------
        choices
            Index of the choice of each decision, as many as `counts` has.

        Raises
        ------
        WorkloadError
            If there are more or fewer, or an index is out of range.
        """

    @abstractmethod
    def uniform(self, generator: np.random.Generator) -> Architecture:
        """Return an architecture of which each choice is equally likely.

        Parameters
        ----------
        generator
            Source of random numbers.
        """

    def check(self, choices: Sequence[int]) -> None:
        """Check the choices of an architecture.

        Parameters
        ----------
        choices
            Index of the choice of each decision, as many as `counts` has.

        Raises
        ------
        WorkloadError
            If there are more or fewer, or an index is out of range.
        """
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
    num_input_states = 2
    num_operations = len(MICRO_OPERATIONS)

    @property
    def counts(self) -> tuple[int, ...]:
        counts_of_cell: list[int] = []
        for num_states in range(self.num_input_states, self.num_input_states + self.num_nodes):
            counts_of_cell += [num_states, num_states, self.num_operations, self.num_operations]
        return (*counts_of_cell, *counts_of_cell)

    def architecture(self, choices: Sequence[int]) -> ConvolutionalArchitecture:
        """Return the normal and the reduction cell.

        Parameters
        ----------
        choices
            For each block the indices of its left and right state, and those of their operations;
            first all of the normal cell.

        Raises
        ------
        WorkloadError
            If there are more or fewer than `counts` has, or an index is out of range.
        """
        self.check(choices)
        blocks = tuple(_block(*choices[at : at + 4]) for at in range(0, len(choices), 4))
        normal, reduction = blocks[: self.num_nodes], blocks[self.num_nodes :]
        return ConvolutionalArchitecture(
            cell_with_loose_ends(normal), cell_with_loose_ends(reduction)
        )

    def uniform(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        """Return an architecture of which each choice is equally likely.

        Parameters
        ----------
        generator
            Source of random numbers.
        """
        return self.architecture(generator.integers(self.counts).tolist())


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
    num_input_states = 0
    num_operations = len(ACTIVATIONS)

    @property
    def counts(self) -> tuple[int, ...]:
        counts = [self.num_operations]
        for node in range(1, self.num_nodes):
            counts += [node, self.num_operations]
        return tuple(counts)

    def architecture(self, choices: Sequence[int]) -> RecurrentCell:
        """Return the cell of choices.

        Parameters
        ----------
        choices
            Index of the first node's activation, then for each node the index of the node that it
            reads, and that of its activation.

        Raises
        ------
        WorkloadError
            If there are more or fewer than `counts` has, or an index is out of range.
        """
        self.check(choices)
        activations = tuple(ACTIVATIONS[choice] for choice in choices[::2])
        return RecurrentCell(activations, tuple(choices[1::2]))

    def uniform(self, generator: np.random.Generator) -> RecurrentCell:
        """Return a cell of which each choice is equally likely.

        Parameters
        ----------
        generator
            Source of random numbers.
        """
        indices = generator.integers(self.num_operations, size=self.num_nodes)
        inputs = tuple(int(generator.integers(node)) for node in range(1, self.num_nodes))
        return RecurrentCell(tuple(ACTIVATIONS[index] for index in indices), inputs)


class ArchitectureSampler(Protocol):
    """Samples architectures of the ENAS search spaces, as an ENAS controller does."""

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        """Return a recurrent cell.

        Parameters
        ----------
        generator
            Source of random numbers.
        """

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        """Return a normal and a reduction cell.

        Parameters
        ----------
        generator
            Source of random numbers.
        """


@dataclass(frozen=True)
class UniformSampler:
    """An `ArchitectureSampler` to which every choice of the search space is equally likely.

    Attributes
    ----------
    num_nodes
        Number of nodes of a recurrent cell; by default 12, as in Pham et al. (2018), section 3.1.
    num_blocks
        Number of blocks of a convolutional cell; by default 5, as there in section 3.2.
    """

    num_nodes: int = 12
    num_blocks: int = 5

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        """Return a recurrent cell.

        Parameters
        ----------
        generator
            Source of random numbers.
        """
        return RecurrentSpace(self.num_nodes).uniform(generator)

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        """Return a normal and a reduction cell.

        Parameters
        ----------
        generator
            Source of random numbers.
        """
        return ConvolutionalSpace(self.num_blocks).uniform(generator)
