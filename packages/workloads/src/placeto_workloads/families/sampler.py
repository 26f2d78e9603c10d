"""Samplers of the architectures of families."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from placeto_workloads.models.cell_architecture import (
    Activation,
    Block,
    ConvolutionalArchitecture,
    ConvolutionalCell,
    Operation,
    RecurrentCell,
    cell_with_loose_ends,
)

# The operations of the ENAS micro search space (Pham et al. 2018, section 2.4).
MICRO_OPERATIONS = (
    Operation.IDENTITY,
    Operation.SEPARABLE_CONVOLUTION_3,
    Operation.SEPARABLE_CONVOLUTION_5,
    Operation.AVERAGE_POOL_3,
    Operation.MAX_POOL_3,
)


class ArchitectureSampler(Protocol):
    """Samples architectures of the ENAS search spaces, as an ENAS controller does.

    Examples
    --------
    A sampler may give the same cell each time:

    >>> from placeto_workloads import NASNET_A
    >>> class OneArchitecture:
    ...     def recurrent_cell(self, generator):
    ...         return RecurrentCell((Activation.TANH,), inputs=())
    ...     def convolutional_cells(self, generator):
    ...         return NASNET_A
    >>> sampler: ArchitectureSampler = OneArchitecture()
    """

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        """Return a recurrent cell."""
        ...

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        """Return a normal and a reduction cell."""
        ...


@dataclass(frozen=True)
class UniformSampler:
    """An `ArchitectureSampler` to which every choice of the search space is equally likely.

    Attributes
    ----------
    num_nodes
        Number of nodes of a recurrent cell; 12, as in Pham et al. (2018), section 3.1.
    num_blocks
        Number of blocks of a convolutional cell; 5, as in Pham et al. (2018), section 3.2.

    Examples
    --------
    >>> sampler = UniformSampler(num_nodes=3)
    >>> sampler.recurrent_cell(np.random.default_rng(seed=0)).inputs
    (0, 0)
    """

    num_nodes: int = 12
    num_blocks: int = 5

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        """Return a cell: for each node an earlier one, and an activation."""
        choices = list(Activation)
        activations = tuple(
            choices[index] for index in generator.integers(len(choices), size=self.num_nodes)
        )
        inputs = tuple(int(generator.integers(node)) for node in range(1, self.num_nodes))
        return RecurrentCell(activations, inputs)

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        """Return two cells: for each block two earlier states, and an operation on each."""
        return ConvolutionalArchitecture(self._cell(generator), self._cell(generator))

    def _cell(self, generator: np.random.Generator) -> ConvolutionalCell:
        blocks = []
        for states in range(2, 2 + self.num_blocks):
            left, right = (int(state) for state in generator.integers(states, size=2))
            left_choice, right_choice = generator.integers(len(MICRO_OPERATIONS), size=2)
            blocks.append(
                Block(left, MICRO_OPERATIONS[left_choice], right, MICRO_OPERATIONS[right_choice])
            )
        return cell_with_loose_ends(tuple(blocks))
