"""Steps that run on real tensors."""

from collections.abc import Mapping, Sequence

import torch

from placeto_capture.tracing.replay import Slots, StorageMemory
from placeto_capture.tracing.trace import Call, Trace


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

    wanted = dict(trace.results)
    memory = StorageMemory(torch.device("cpu"), trace.storage_bytes, Slots())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for source in trace.placeholders:
            tensors = {**source.tensors, **source.state}
            wanted |= tensors if source.is_resident else {}
            for name, view in tensors.items():
                value = values[name] if name in values else source.values[name]
                memory.tensor(view).copy_(value.detach())
        for op in range(len(trace.ops)) if order is None else order:
            call = trace.ops[op]
            if isinstance(call, Call):
                memory.run(call, seed)
        return {name: memory.tensor(view).clone() for name, view in wanted.items()}
