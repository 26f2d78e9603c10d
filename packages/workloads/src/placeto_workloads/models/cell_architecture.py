"""Cells as data: the search spaces of NASNet (Zoph et al. 2018) and ENAS (Pham et al. 2018)."""

from dataclasses import dataclass
from enum import Enum

from placeto_workloads.errors import WorkloadError

PREVIOUS, CURRENT = 0, 1  # the states that a convolutional cell is given


class Operation(Enum):
    """The operation of a block of a convolutional cell on one of its inputs.

    Examples
    --------
    >>> Operation("max pool 3x3").name
    'MAX_POOL_3'
    """

    IDENTITY = "identity"
    SEPARABLE_CONVOLUTION_3 = "separable convolution 3x3"
    SEPARABLE_CONVOLUTION_5 = "separable convolution 5x5"
    SEPARABLE_CONVOLUTION_7 = "separable convolution 7x7"
    AVERAGE_POOL_3 = "average pool 3x3"
    MAX_POOL_3 = "max pool 3x3"


@dataclass(frozen=True)
class Block:
    """Two operations on two earlier states, whose results are added.

    Attributes
    ----------
    left, right
        Indices of states: 0 is the output of the cell before the last, 1 that of the last cell,
        and 2 onwards are the blocks of this cell, in order.
    left_operation, right_operation
        Operations on each.

    Examples
    --------
    >>> Block(0, Operation.IDENTITY, 1, Operation.MAX_POOL_3).right
    1
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
        At least one; each reads only earlier states.
    outputs
        Indices of states, at least one.

    Raises
    ------
    WorkloadError
        When a block or the output reads a state that is not there.

    Examples
    --------
    >>> block = Block(0, Operation.IDENTITY, 1, Operation.MAX_POOL_3)
    >>> ConvolutionalCell((block,), outputs=(2,)).num_states
    3
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
                _check_state(f"blocks[{index}].{side}", state, CURRENT + 1 + index)
        for index, state in enumerate(self.outputs):
            _check_state(f"outputs[{index}]", state, self.num_states)

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
        The cell that keeps height and width.
    reduction
        The cell that halves them: its operations on its two inputs have stride 2.

    Examples
    --------
    >>> block = Block(0, Operation.IDENTITY, 1, Operation.MAX_POOL_3)
    >>> cell = ConvolutionalCell((block,), outputs=(2,))
    >>> ConvolutionalArchitecture(normal=cell, reduction=cell).normal is cell
    True
    """

    normal: ConvolutionalCell
    reduction: ConvolutionalCell


class Activation(Enum):
    """The function that a node of a recurrent cell applies.

    Examples
    --------
    >>> Activation("relu").name
    'RELU'
    """

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    RELU = "relu"


@dataclass(frozen=True)
class RecurrentCell:
    """A recurrent cell of the ENAS search space (Pham et al. 2018, section 2.1).

    The first node reads the input and the state of the step before; each other node reads one
    earlier node. The nodes that no other one reads, the loose ends, are averaged into the new
    state.

    Attributes
    ----------
    activations
        One for each node.
    inputs
        Index of the earlier node that each node but the first reads.

    Raises
    ------
    WorkloadError
        When there is no node, or one reads a node that is not before it.

    Examples
    --------
    >>> cell = RecurrentCell((Activation.TANH, Activation.RELU, Activation.RELU), inputs=(0, 0))
    >>> cell.loose_ends
    (1, 2)
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
            _check_state(f"inputs[{index}]", node, index + 1)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.activations)

    @property
    def loose_ends(self) -> tuple[int, ...]:
        """The nodes that no other node reads."""
        return tuple(node for node in range(self.num_nodes) if node not in self.inputs)


def cell_with_loose_ends(blocks: tuple[Block, ...]) -> ConvolutionalCell:
    """Return the cell whose output is every state that no block reads.

    Examples
    --------
    >>> block = Block(0, Operation.IDENTITY, 0, Operation.MAX_POOL_3)
    >>> cell_with_loose_ends((block,)).outputs
    (1, 2)
    """
    read = {state for block in blocks for state in (block.left, block.right)}
    states = range(CURRENT + 1 + len(blocks))
    return ConvolutionalCell(blocks, tuple(state for state in states if state not in read))


def _check_state(field: str, state: int, count: int) -> None:
    if not 0 <= state < count:
        raise WorkloadError(f"{field}: expected an index from 0 to {count - 1}, got {state}")
