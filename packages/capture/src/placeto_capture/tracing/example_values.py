"""Values for what a step reads and nobody has given."""

import torch

from placeto_capture.tracing.replay import ValueOf
from placeto_capture.tracing.trace import Source, TensorRef

WEIGHT_SCALE = 0.02  # of weights that have no values


def example_values(generator: torch.Generator) -> ValueOf:
    """Return what gives a tensor of a source the values that `capture` was given, or random ones.

    What the optimizer keeps, and whole numbers that are not known, are zero.
    """

    def value_of(source: Source, name: str, ref: TensorRef) -> torch.Tensor:
        value = source.values.get(name)
        if value is not None and not value.is_meta:
            return value.detach()
        if name in source.state or not ref.dtype.is_floating_point:
            return torch.zeros(ref.size, dtype=ref.dtype)
        values = torch.randn(ref.size, generator=generator)
        if source.op_type == "parameter":
            values *= WEIGHT_SCALE
        if source.op_type == "buffer":
            values = values.abs()  # it may be a variance
        return values.to(ref.dtype)

    return value_of
