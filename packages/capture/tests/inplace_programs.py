"""Random programs that write tensors through views of them."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import nn


@dataclass(frozen=True)
class Statement:
    """``kind`` of statement, on the views ``target`` and ``operand`` of the tensors so far."""

    kind: str
    target: int
    operand: int
    view: str


VIEWS = {
    "all": lambda tensor: tensor,
    "first row": lambda tensor: tensor[:1],
    "last rows": lambda tensor: tensor[1:],
    "even columns": lambda tensor: tensor[:, ::2],
    "transposed": lambda tensor: tensor.t(),
}
KINDS = ("new", "add in place", "copy in place", "scale in place", "fill in place", "view")


class InPlaceProgram(nn.Module):
    """Runs statements on a list of tensors.

    The first are a buffer and a parameter, which overlap in ``memory``, and an input that may do
    so, too; a number that is scaled with is in the same memory, but alone.
    """

    buffer: torch.Tensor
    scale: torch.Tensor

    def __init__(self, statements: list[Statement]) -> None:
        super().__init__()
        self.statements = statements
        self.memory = torch.linspace(-1, 1, 24)
        self.register_buffer("buffer", self.memory[:12].reshape(3, 4))
        self.register_buffer("scale", self.memory[23])
        self.weight = nn.Parameter(self.memory[6:18].reshape(3, 4), requires_grad=False)

    def forward(self, inputs: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        tensors = [self.buffer, self.weight.detach(), shared, inputs * 2]
        tensors += [torch.empty(3, 4).copy_(inputs)]
        for statement in self.statements:
            target = tensors[statement.target % len(tensors)]
            operand = tensors[statement.operand % len(tensors)]
            view = VIEWS[statement.view](target)
            if statement.kind == "new":
                tensors.append(torch.tanh(target) + operand)
            elif statement.kind == "view":
                tensors.append(target.view(3, 4))
            elif statement.kind == "add in place":
                view.add_(operand.mean())
            elif statement.kind == "copy in place":
                view.copy_(operand.mean().expand(view.shape))
            elif statement.kind == "scale in place":
                view.mul_(self.scale)
            else:
                view.zero_()
        return torch.stack(tensors)


def programs() -> st.SearchStrategy[InPlaceProgram]:
    """Return programs of up to twelve statements."""
    statement = st.builds(
        Statement,
        kind=st.sampled_from(KINDS),
        target=st.integers(0, 9),
        operand=st.integers(0, 9),
        view=st.sampled_from(sorted(VIEWS)),
    )
    return st.builds(InPlaceProgram, st.lists(statement, max_size=12))
