"""Steps that run on real tensors: all ops in one memory, or each in a memory of its own."""

from collections.abc import Mapping, Sequence

import torch

from placeto_capture.tracing.op_graph import TensorsOfTrace
from placeto_capture.tracing.replay import Memory
from placeto_capture.tracing.trace import (
    Call,
    Placeholder,
    Trace,
    View,
    views_in,
    whole_storage,
)

CPU = torch.device("cpu")
GARBAGE = 255  # numbers of such bytes are no numbers


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


def replay_apart(
    trace: Trace, values: dict[str, torch.Tensor], seed: int
) -> dict[str, torch.Tensor]:
    """Run a step in which an op finds garbage but for the tensors that the graph says it reads.

    It is the oracle of what ops send. Resident memory is one for all. Returned are its tensors
    after the step, and those results of which all bytes have been made by one op.
    """

    def value_of(source: Placeholder, name: str, _: View) -> torch.Tensor:
        return (values[name] if name in values else source.values[name]).detach()

    tensors = TensorsOfTrace(trace)
    homes = tensors.home_of_storage
    memories = [Memory(trace, CPU, value_of, range(len(trace.storage_bytes))) for _ in trace.ops]
    resident = Memory(trace, CPU, value_of, range(len(trace.storage_bytes)))
    maker: dict[int, int] = {}
    for op, call in enumerate(trace.ops):
        if isinstance(call, Placeholder):
            continue
        memory, found = memories[op], _storages_of_arguments(call)
        for storage in found:
            whole = whole_storage(storage, trace.storage_bytes[storage])
            memory.tensor(whole).fill_(GARBAGE)
            if storage in homes:
                memory.tensor(whole).copy_(resident.tensor(whole))
        for tensor in [tensor for tensor, reader in tensors.edges if reader == op]:
            producer = tensors.made[tensor].producer
            if producer not in homes.values():
                for ref in _contents(tensors, tensor):
                    memory.tensor(ref).copy_(memories[producer].tensor(ref))
        memory.run(call, seed)
        for storage in found:
            if storage in homes:
                whole = whole_storage(storage, trace.storage_bytes[storage])
                resident.tensor(whole).copy_(memory.tensor(whole))
        maker.update(dict.fromkeys(call.creates, op))
        for storage in call.writes:
            maker.pop(storage, None)
    kept = {
        name: resident.tensor(ref)
        for source in trace.placeholders
        if source.is_resident
        for name, ref in {**source.tensors, **source.state}.items()
    }
    made = {
        name: memories[maker[ref.storage]].tensor(ref)
        for name, ref in trace.results.items()
        if ref.storage in maker
    }
    return {**made, **kept}


def _contents(tensors: TensorsOfTrace, tensor: int) -> list[View]:
    """Return the bytes of a tensor; those of one that is in resident memory are none."""
    made = tensors.made[tensor]
    if made.storage is None or not made.num_bytes:
        return []
    parts = tensors.parts.parts(made.storage)
    return [parts[part] for part in made.bytes_of_part]


def _storages_of_arguments(call: Call) -> set[int]:
    """Return the storages that are there when a call begins, and those that it then writes."""
    refs = views_in([(part.arguments, part.keywords) for part in call.single_calls])
    made_between = {storage for part in call.parts for storage in part.creates}
    return {ref.storage for ref in refs} - made_between
