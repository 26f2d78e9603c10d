"""Cells as data: the search spaces of NASNet (Zoph et al. 2018) and ENAS (Pham et al. 2018)."""

from dataclasses import dataclass
from enum import Enum

from placeto_workloads.errors import WorkloadError

PREVIOUS, CURRENT = 0, 1  # the states that a convolutional cell is given


class Operation(Enum):
    """The operation of a block of a convolutional cell on one of its inputs."""

    IDENTITY = "identity"
    SEPARABLE_CONVOLUTION_3 = "separable convolution 3x3"
    SEPARABLE_CONVOLUTION_5 = "separable convolution 5x5"
    SEPARABLE_CONVOLUTION_7 = "separable convolution 7x7"
    AVERAGE_POOL_3 = "average pool 3x3"
    MAX_POOL_3 = "max pool 3x3"


@dataclass(frozen=True)
class Block:
    """Two operations on two earlier states, whose results are added.

    States 0 and 1 are the outputs of the cell before the last and of the last one; 2 onwards are
    the blocks of this cell, in order.

    Attributes
    ----------
    left, right
        Indices of the two states.
    left_operation, right_operation
        Operations on them.
    """

    left: int
    left_operation: Operation
    right: int
    right_operation: Operation


@dataclass(frozen=True)
class ConvolutionalCell:
    """Blocks, and the states that are joined along the channels into the output of the cell.

    Attributes
    ----------
    blocks
        Blocks, in order.
    outputs
        Indices of the states that are joined.

    Raises
    ------
    WorkloadError
        If there is no block or no output, or an index is that of no earlier state.
    """

    blocks: tuple[Block, ...]
    outputs: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.blocks:
            raise WorkloadError("blocks: expected at least one, got none")
        if not self.outputs:
            raise WorkloadError("outputs: expected at least one state, got none")
        for index, block in enumerate(self.blocks):
            for side, state in (("left", block.left), ("right", block.right)):
                check_index(f"blocks[{index}].{side}", state, CURRENT + 1 + index)
        for index, state in enumerate(self.outputs):
            check_index(f"outputs[{index}]", state, self.num_states)

    @property
    def num_states(self) -> int:
        """Number of states: two inputs and the blocks."""
        return CURRENT + 1 + len(self.blocks)


@dataclass(frozen=True)
class ConvolutionalArchitecture:
    """The two cells that a network repeats.

    Attributes
    ----------
    normal
        Cell that keeps height and width.
    reduction
        Cell that halves them: its operations on its two inputs have stride 2.
    """

    normal: ConvolutionalCell
    reduction: ConvolutionalCell


class Activation(Enum):
    """The function that a node of a recurrent cell applies."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    RELU = "relu"


@dataclass(frozen=True)
class RecurrentCell:
    """A recurrent cell of the ENAS search space (Pham et al. 2018, section 2.1).

    The first node reads the input and the state of the step before; each other node reads one
    earlier node, whose index is in ``inputs``. The nodes that no other one reads, the loose ends,
    are averaged into the new state.

    Attributes
    ----------
    activations
        Activation of each node.
    inputs
        Index of the node that each node but the first reads.

    Raises
    ------
    WorkloadError
        If there is no node, or ``inputs`` has not one earlier node for each node but the first.
    """

    activations: tuple[Activation, ...]
    inputs: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.activations:
            raise WorkloadError("activations: expected at least one node, got none")
        if len(self.inputs) != self.num_nodes - 1:
            raise WorkloadError(
                f"inputs: expected one for each of {self.num_nodes} nodes but the first, "
                f"got {len(self.inputs)}"
            )
        for index, node in enumerate(self.inputs):
            check_index(f"inputs[{index}]", node, index + 1)

    @property
    def num_nodes(self) -> int:
        return len(self.activations)

    @property
    def loose_ends(self) -> tuple[int, ...]:
        """The nodes that no other node reads."""
        return tuple(node for node in range(self.num_nodes) if node not in self.inputs)


def cell_with_loose_ends(blocks: tuple[Block, ...]) -> ConvolutionalCell:
    """Return the cell whose output is every state that no block reads.

    Parameters
    ----------
    blocks
        Blocks of the cell, in order; each reads states before it.

    Raises
    ------
    WorkloadError
        If there is no block, or one reads a state that is not before it.

    Examples
    --------
    >>> block = Block(PREVIOUS, Operation.IDENTITY, CURRENT, Operation.MAX_POOL_3)
    >>> cell_with_loose_ends((block, block)).outputs
    (2, 3)
    """
    read = {state for block in blocks for state in (block.left, block.right)}
    states = range(CURRENT + 1 + len(blocks))
    return ConvolutionalCell(blocks, tuple(state for state in states if state not in read))


def check_index(field: str, index: int, count: int) -> None:
    """Check an index of a state or a choice."""
    if not 0 <= index < count:
        raise WorkloadError(f"{field}: expected an index from 0 to {count - 1}, got {index}")
