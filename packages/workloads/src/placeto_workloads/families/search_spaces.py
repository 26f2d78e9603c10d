"""The two search spaces of ENAS as sequences of decisions (Pham et al. 2018, sections 2.1, 2.4).

A controller makes one decision after the other, each among a fixed number of choices. The numbers
that it chose are an architecture.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

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


class Kind(Enum):
    """Subject of a decision: which earlier state is read, or what is done to it."""

    STATE = "state"
    OPERATION = "operation"


@dataclass(frozen=True)
class Decision:
    """One decision, and its number of choices."""

    kind: Kind
    count: int


@dataclass(frozen=True)
class SearchSpace(ABC):
    """Architectures as sequences of choices.

    Attributes
    ----------
    num_nodes
        Number of nodes of a cell, at least 1.
    name
        Name of the space in files.
    num_cells
        Number of cells of an architecture.
    given_states
        Number of states of a cell before its first node.
    num_operations
        Number of operations that a node chooses from.
    """

    num_nodes: int

    name: ClassVar[str]
    num_cells: ClassVar[int]
    given_states: ClassVar[int]
    num_operations: ClassVar[int]

    def __post_init__(self) -> None:
        whole_number("num_nodes", self.num_nodes)

    @property
    @abstractmethod
    def nodes(self) -> tuple[tuple[Decision, ...], ...]:
        """The decisions of each node of a cell, in order; all cells have the same."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All decisions that make an architecture, in order."""
        return tuple(decision for node in self.nodes for decision in node) * self.num_cells

    @abstractmethod
    def architecture(self, choices: Sequence[int]) -> Architecture:
        """Return the architecture of choices, one for each decision."""

    @abstractmethod
    def choices(self, architecture: Architecture) -> tuple[int, ...]:
        """Return the choices that make an architecture."""

    @abstractmethod
    def uniform(self, generator: np.random.Generator) -> Architecture:
        """Return an architecture of which each choice is equally likely."""

    def _check(self, choices: Sequence[int]) -> None:
        decisions = self.decisions
        if len(choices) != len(decisions):
            raise WorkloadError(f"choices: expected {len(decisions)}, got {len(choices)}")
        for index, (choice, decision) in enumerate(zip(choices, decisions, strict=True)):
            if not 0 <= choice < decision.count:
                raise WorkloadError(
                    f"choices[{index}]: expected a number from 0 to {decision.count - 1}, "
                    f"got {choice}"
                )


@dataclass(frozen=True)
class ConvolutionalSpace(SearchSpace):
    """The micro search space: a normal and a reduction cell, by default of 5 blocks each.

    Each block chooses two earlier states, then an operation on each.

    Examples
    --------
    >>> space = ConvolutionalSpace(num_nodes=1)
    >>> cells = space.architecture([0, 1, 0, 4, 1, 1, 2, 2])
    >>> cells.normal.blocks[0].right_operation.value
    'max pool 3x3'
    >>> space.choices(cells)
    (0, 1, 0, 4, 1, 1, 2, 2)
    """

    num_nodes: int = 5

    name = "convolutional"
    num_cells = 2
    given_states = 2
    num_operations = len(MICRO_OPERATIONS)

    @property
    def nodes(self) -> tuple[tuple[Decision, ...], ...]:
        operation = Decision(Kind.OPERATION, self.num_operations)
        return tuple(
            (Decision(Kind.STATE, states), Decision(Kind.STATE, states), operation, operation)
            for states in range(self.given_states, self.given_states + self.num_nodes)
        )

    def architecture(self, choices: Sequence[int]) -> ConvolutionalArchitecture:
        """Return the normal and the reduction cell; a block has left, right, their operations."""
        self._check(choices)
        blocks = tuple(
            Block(left, MICRO_OPERATIONS[left_choice], right, MICRO_OPERATIONS[right_choice])
            for left, right, left_choice, right_choice in zip(
                *(choices[side::4] for side in range(4)), strict=True
            )
        )
        normal, reduction = blocks[: self.num_nodes], blocks[self.num_nodes :]
        return ConvolutionalArchitecture(
            cell_with_loose_ends(normal), cell_with_loose_ends(reduction)
        )

    def choices(self, architecture: Architecture) -> tuple[int, ...]:
        if not isinstance(architecture, ConvolutionalArchitecture):
            raise WorkloadError(f"architecture: expected convolutional cells, got {architecture!r}")
        return (*self._of_cell(architecture.normal), *self._of_cell(architecture.reduction))

    def uniform(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        return ConvolutionalArchitecture(self._cell(generator), self._cell(generator))

    def _cell(self, generator: np.random.Generator) -> ConvolutionalCell:
        blocks = []
        for states in range(self.given_states, self.given_states + self.num_nodes):
            left, right = (int(state) for state in generator.integers(states, size=2))
            left_choice, right_choice = generator.integers(self.num_operations, size=2)
            blocks.append(
                Block(left, MICRO_OPERATIONS[left_choice], right, MICRO_OPERATIONS[right_choice])
            )
        return cell_with_loose_ends(tuple(blocks))

    def _of_cell(self, cell: ConvolutionalCell) -> Iterator[int]:
        if len(cell.blocks) != self.num_nodes or cell != cell_with_loose_ends(cell.blocks):
            raise WorkloadError(
                f"architecture: expected {self.num_nodes} blocks and their loose ends, got {cell!r}"
            )
        for block in cell.blocks:
            operations = (block.left_operation, block.right_operation)
            for operation in operations:
                if operation not in MICRO_OPERATIONS:
                    raise WorkloadError(
                        "architecture: expected operations of the micro space, "
                        f"got {operation.value!r}"
                    )
            yield from (block.left, block.right)
            yield from (MICRO_OPERATIONS.index(operation) for operation in operations)


@dataclass(frozen=True)
class RecurrentSpace(SearchSpace):
    """The space of recurrent cells, by default of 12 nodes.

    Each node chooses an earlier node, then an activation. The first node reads the word and the
    last state, and chooses an activation alone.

    Examples
    --------
    >>> space = RecurrentSpace(num_nodes=2)
    >>> space.architecture([2, 0, 3]).activations[1].value
    'relu'
    >>> space.choices(space.architecture([2, 0, 3]))
    (2, 0, 3)
    """

    num_nodes: int = 12

    name = "recurrent"
    num_cells = 1
    given_states = 0
    num_operations = len(ACTIVATIONS)

    @property
    def nodes(self) -> tuple[tuple[Decision, ...], ...]:
        operation = Decision(Kind.OPERATION, self.num_operations)
        others = ((Decision(Kind.STATE, node), operation) for node in range(1, self.num_nodes))
        return ((operation,), *others)

    def architecture(self, choices: Sequence[int]) -> RecurrentCell:
        self._check(choices)
        activations = tuple(ACTIVATIONS[choice] for choice in choices[::2])
        return RecurrentCell(activations, tuple(choices[1::2]))

    def choices(self, architecture: Architecture) -> tuple[int, ...]:
        if not isinstance(architecture, RecurrentCell) or architecture.num_nodes != self.num_nodes:
            raise WorkloadError(
                f"architecture: expected a recurrent cell of {self.num_nodes} nodes, "
                f"got {architecture!r}"
            )
        first, *others = (ACTIVATIONS.index(activation) for activation in architecture.activations)
        pairs = zip(architecture.inputs, others, strict=True)
        return (first, *(choice for pair in pairs for choice in pair))

    def uniform(self, generator: np.random.Generator) -> RecurrentCell:
        indices = generator.integers(self.num_operations, size=self.num_nodes)
        inputs = tuple(int(generator.integers(node)) for node in range(1, self.num_nodes))
        return RecurrentCell(tuple(ACTIVATIONS[index] for index in indices), inputs)
