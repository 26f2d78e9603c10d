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
    """Runs statements on a list of tensors, of which the first is a buffer."""

    buffer: torch.Tensor

    def __init__(self, statements: list[Statement]) -> None:
        super().__init__()
        self.statements = statements
        self.register_buffer("buffer", torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        tensors = [self.buffer, inputs * 2, torch.empty(3, 4).copy_(inputs)]
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
                view.mul_(0.5)
            else:
                view.zero_()
        return torch.stack(tensors)


def programs() -> st.SearchStrategy[InPlaceProgram]:
    """Return programs of up to twelve statements."""
    statement = st.builds(
        Statement,
        kind=st.sampled_from(KINDS),
        target=st.integers(0, 7),
        operand=st.integers(0, 7),
        view=st.sampled_from(sorted(VIEWS)),
    )
    return st.builds(InPlaceProgram, st.lists(statement, max_size=12))
