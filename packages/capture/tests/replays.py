"""Steps that run on real tensors."""

from collections.abc import Mapping, Sequence

import torch

from placeto_capture.tracing.replay import Memory
from placeto_capture.tracing.trace import Call, Placeholder, Trace, View

CPU = torch.device("cpu")


def replay(
    trace: Trace,
    values: Mapping[str, torch.Tensor],
    *,
    order: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Run a traced step in an order of its ops; values that `capture` was given are known already.

    Returned are the results of the trace, and weights, buffers and optimizer state after the step.
    """

    def value_of(source: Placeholder, name: str, _: View) -> torch.Tensor:
        return (values[name] if name in values else source.values[name]).detach()

    wanted = dict(trace.results)
    for source in trace.placeholders:
        if source.is_resident:
            wanted |= {**source.tensors, **source.state}
    memory = Memory(trace, CPU, value_of, {view.storage for view in wanted.values()})
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for op in range(len(trace.ops)) if order is None else order:
            call = trace.ops[op]
            if isinstance(call, Call):
                memory.run(call, seed)
        return {name: memory.tensor(view).clone() for name, view in wanted.items()}
