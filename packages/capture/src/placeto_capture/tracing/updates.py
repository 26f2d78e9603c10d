"""The update of a weight as one op, as fused optimizers and TensorFlow run it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from placeto_capture.tracing.trace import Call, Source, Trace, references
from placeto_graphs import Phase


def with_whole_updates(trace: Trace) -> Trace:
    """Return a trace in which the update of each weight is one op of type ``"placeto.update"``.

    It stands where the last of its ops stood, has the FLOPs of all of them, and reads and writes
    what was there before it, or is there after it, once: what is between them stays in registers.
    An update that is one op already stays, as does one that something else comes between.
    """
    merged = {ops[-1]: ops for ops in _updates(trace) if _is_free(trace, ops)}
    removed = {op for ops in merged.values() for op in ops[:-1]}
    kept = [op for op in range(len(trace.ops)) if op not in removed]
    place = {op: index for index, op in enumerate(kept)}
    users = _users(trace)
    ops: list[Source | Call] = []
    for op in kept:
        made = trace.ops[op]
        if op in merged:
            made = _whole(trace, merged[op], users)
        if isinstance(made, Call) and made.belongs_to is not None:
            made = replace(made, belongs_to=place[made.belongs_to])
        ops.append(made)
    return replace(trace, ops=ops)


def _updates(trace: Trace) -> Iterable[list[int]]:
    """Return the ops of the update of each weight, and those whose results only they read."""
    owner: dict[int, int | None] = {}
    users: defaultdict[int, set[int | None]] = defaultdict(set)
    updates = [
        (op, call)
        for op, call in enumerate(trace.ops)
        if isinstance(call, Call) and call.phase == Phase.UPDATE
    ]
    for op, call in reversed(updates):
        of_results = {user for storage in call.creates for user in users[storage]}
        owner[op] = call.belongs_to
        if call.belongs_to is None and not call.writes and len(of_results) == 1:
            (owner[op],) = of_results
        for storage in (*call.reads, *call.writes):
            users[storage].add(owner[op])
    ops_of_owner: defaultdict[int, list[int]] = defaultdict(list)
    for op, _ in updates:
        weight = owner[op]
        if weight is not None:
            ops_of_owner[weight].append(op)
    return [ops for ops in ops_of_owner.values() if len(ops) > 1]


def _is_free(trace: Trace, ops: Sequence[int]) -> bool:
    """Return whether nothing between some ops touches what they write, or writes what they read."""
    own = set(ops)
    calls = _calls(trace, ops)
    written = {storage for call in calls for storage in (*call.writes, *call.creates)}
    read = {storage for call in calls for storage in call.reads}
    for op in range(ops[0], ops[-1]):
        other = trace.ops[op]
        if op not in own and isinstance(other, Call):
            if not written.isdisjoint((*other.reads, *other.writes)):
                return False
            if not read.isdisjoint((*other.writes, *other.creates)):
                return False
    return True


def _whole(trace: Trace, ops: Sequence[int], users: Mapping[int, set[int]]) -> Call:
    parts = tuple(_calls(trace, ops))
    made = {storage for part in parts for storage in part.creates}
    own = set(ops)
    kept = {storage for storage in made if not users.get(storage, own) <= own}
    reads = dict.fromkeys(s for part in parts for s in part.reads if s not in made)
    writes = dict.fromkeys(s for part in parts for s in part.writes if s not in made)
    return replace(
        parts[-1],
        arguments=(),
        keywords={},
        outputs=(),
        reads=tuple(storage for storage in reads if storage not in writes),
        writes=tuple(writes),
        creates=tuple(sorted(kept)),
        flops=sum(part.flops for part in parts),
        bytes_accessed=_bytes_of(parts, made - kept),
        belongs_to=next(part.belongs_to for part in parts if part.belongs_to is not None),
        draw=None,
        parts=parts,
    )


def _calls(trace: Trace, ops: Iterable[int]) -> list[Call]:
    return [call for call in (trace.ops[op] for op in ops) if isinstance(call, Call)]


def _users(trace: Trace) -> Mapping[int, set[int]]:
    """Return the ops that read or write each storage, and -1 for those that hold results."""
    users: defaultdict[int, set[int]] = defaultdict(set)
    for op, call in enumerate(trace.ops):
        if isinstance(call, Call):
            for storage in (*call.reads, *call.writes):
                users[storage].add(op)
    for ref in trace.results.values():
        users[ref.storage].add(-1)
    return users


def _bytes_of(parts: Sequence[Call], inside: set[int]) -> int:
    """Return the bytes of what parts read and write, but of what is there only between them."""
    read: defaultdict[int, int] = defaultdict(int)
    written: defaultdict[int, int] = defaultdict(int)
    for part in parts:
        for ref in references((part.arguments, part.keywords, part.outputs)):
            if ref.storage in inside:
                continue
            if ref.storage in (*part.writes, *part.creates):
                written[ref.storage] = max(written[ref.storage], ref.num_bytes)
            if ref.storage not in part.creates:
                read[ref.storage] = max(read[ref.storage], ref.num_bytes)
    return sum(read.values()) + sum(written.values())
