"""The updates of a trace: each one op, and barriers behind the backward passes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from placeto_capture.costs.op_classes import OpClass, class_of_type
from placeto_capture.tracing.trace import Call, Op, Placeholder, Trace, views_in
from placeto_graphs import Phase

# Classes of the ops that fused optimizers run in one kernel: not the products of Muon.
CLASSES_OF_UPDATES = {OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.COPY}


def with_whole_updates(trace: Trace) -> Trace:
    """Return a trace in which the update of each weight is one op of type ``"placeto.update"``.

    It stands where its last op stood, and leaves out ops that others depend on, such as norms. What
    is there only between its ops is workspace; while ops of other weights run, as with ``foreach``,
    a tensor.
    """
    users = _users(trace)
    free = (_free_part(trace, ops, users) for ops in _updates(trace))
    merged = {
        ops[-1]: ops
        for ops in free
        if len(ops) > 1
        and CLASSES_OF_UPDATES.issuperset(class_of_type(trace.ops[op].op_type) for op in ops)
    }
    removed = {op for ops in merged.values() for op in ops[:-1]}
    kept = [op for op in range(len(trace.ops)) if op not in removed]
    place = {op: index for index, op in enumerate(kept)}
    place |= {op: place[last] for last, parts in merged.items() for op in parts}
    ends: dict[int, int] = {}
    begin = end = len(trace.ops)  # of updates that run between each other
    for last, parts in sorted(merged.items(), reverse=True):
        inside = (s for op in parts for s in trace.ops[op].creates if users[s] <= {*parts})
        until = max([last + 1, *(trace.deaths.get(s, len(trace.ops)) for s in inside)])
        end = max(end, until) if until > begin else until
        begin = min(begin, parts[0])
        ends[last] = end
    storage_bytes, deaths, held = [*trace.storage_bytes], {**trace.deaths}, {*trace.held}
    ops: list[Op] = []
    for op in kept:
        made = trace.ops[op]
        if op in merged:
            made, shared_bytes = _whole(trace, merged[op], users)
            if shared_bytes:
                storage = len(storage_bytes)
                storage_bytes.append(shared_bytes)
                made.creates = (*made.creates, storage)
                deaths[storage] = ends[op]
                if deaths[storage] == len(trace.ops):
                    held.add(storage)
        ops.append(_moved(made, place))
    return replace(
        trace,
        ops=ops,
        storage_bytes=storage_bytes,
        deaths=_moved_deaths(deaths, place, len(ops)),
        held=frozenset(held),
    )


def with_barriers(trace: Trace) -> Trace:
    """Return a trace with ops ``"placeto.barrier"`` before updates.

    They belong to the first weight that is updated, so that they are in no group of their own.
    There is also one before a forward pass that begins right after a backward pass.
    """
    barriers: dict[int, list[Call]] = {}
    phase = Phase.FORWARD
    for op, made in enumerate(trace.ops):
        if isinstance(made, Call):
            begins_update = made.phase == Phase.UPDATE and phase != Phase.UPDATE
            if begins_update or (made.phase == Phase.FORWARD and phase == Phase.BACKWARD):
                barriers[op] = [_barrier_before(trace.ops, op, made.phase)]
            phase = made.phase
    return with_calls(trace, barriers)


def with_calls(trace: Trace, calls: Mapping[int, Sequence[Call]]) -> Trace:
    """Return a trace with calls before some of its ops, or after all; they name ops of before."""
    ops: list[Op] = []
    place: dict[int, int] = {}
    for op in range(len(trace.ops) + 1):
        ops += [_moved(call, place) for call in calls.get(op, ())]
        if op < len(trace.ops):
            place[op] = len(ops)
            ops.append(_moved(trace.ops[op], place))
    return replace(trace, ops=ops, deaths=_moved_deaths(trace.deaths, place, len(ops)))


def _moved_deaths(deaths: Mapping[int, int], place: Mapping[int, int], end: int) -> dict[int, int]:
    return {storage: place.get(op, end) for storage, op in deaths.items()}


def _barrier_before(ops: Sequence[Op], op: int, phase: Phase) -> Call:
    if phase == Phase.UPDATE:
        later = (made for made in ops[op:] if isinstance(made, Call))
        scope, calls = "optimizer", takewhile(lambda call: call.phase == Phase.UPDATE, later)
        owners = [call.belongs_to for call in calls]
    else:
        scope, owners = "loss", [made.belongs_to for made in reversed(ops[:op])]
    owner = next((each for each in owners if each is not None), None)
    return Call(None, scope=scope, phase=phase, belongs_to=owner)


def _moved(made: Op, place: Mapping[int, int]) -> Op:
    """Return an op with the new indices of those that it names."""
    owner = None if made.belongs_to is None else place[made.belongs_to]
    if isinstance(made, Placeholder):
        return replace(made, belongs_to=owner)
    return replace(
        made,
        belongs_to=owner,
        waits_for=tuple(dict.fromkeys(place[op] for op in made.waits_for)),
    )


def _updates(trace: Trace) -> Iterable[list[int]]:
    """Return the ops of the update of each weight, and those whose results only they read."""
    owner: dict[int, int | None] = {}
    users: defaultdict[int, set[int | None]] = defaultdict(set)
    updates = [(op, call) for op, call in enumerate(trace.ops) if call.update]
    for op, call in reversed(updates):
        of_results = {user for storage in call.creates for user in users[storage]}
        owner[op] = call.belongs_to
        if call.belongs_to is None and not call.writes and len(of_results) == 1:
            (owner[op],) = of_results
        for storage in (*call.reads, *call.writes):
            users[storage].add(owner[op])
    ops_of_owner: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for op, call in updates:
        weight = owner[op]
        if weight is not None:
            ops_of_owner[weight, call.update].append(op)
    return list(ops_of_owner.values())


def _free_part(trace: Trace, ops: list[int], users: Mapping[int, set[int]]) -> list[int]:
    """Return the last ones of some ops that nothing between them disturbs."""
    own = set(ops)
    calls = [trace.ops[op] for op in ops]
    written = {storage for call in calls for storage in (*call.writes, *call.creates)}
    read = {storage for call in calls for storage in call.reads}
    others = {
        op
        for storage in written | read
        for op in users[storage] - own
        if op < ops[-1]
        and (storage in written or storage in (*trace.ops[op].writes, *trace.ops[op].creates))
    }
    last = max(others, default=-1)
    return [op for op in ops if op > last]


def _whole(trace: Trace, ops: Sequence[int], users: Mapping[int, set[int]]) -> tuple[Call, int]:
    """Return an op that stands for some, and the most bytes between them while others run."""
    parts = tuple(part for op in ops for part in trace.ops[op].single_calls)
    made = {storage for part in parts for storage in part.creates}
    own = set(ops)
    kept = {storage for storage in made if not users[storage] <= own}
    reads = dict.fromkeys(s for part in parts for s in part.reads if s not in made)
    writes = dict.fromkeys(s for part in parts for s in part.writes if s not in made)
    most_bytes, shared_bytes = _bytes_between(trace, ops, made - kept)
    whole = replace(
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
        rng_index=None,
        parts=parts,
        workspace_bytes=most_bytes - shared_bytes,
    )
    return whole, shared_bytes


def _bytes_between(trace: Trace, ops: Sequence[int], inside: set[int]) -> tuple[int, int]:
    """Return the most bytes of what is there only between some ops, and while others run."""
    if trace.ops[ops[0]].update in trace.fused:
        return 0, 0
    made = {storage: op for op in ops for storage in trace.ops[op].creates if storage in inside}

    def bytes_at(op: int) -> int:
        there = (s for s in made if made[s] <= op < trace.deaths.get(s, len(trace.ops)))
        return sum(trace.storage_bytes[s] for s in there)

    others = {op + 1 for op in ops[:-1] if trace.ops[op + 1].belongs_to is not None}.difference(ops)
    shared = max((bytes_at(op) for op in others), default=0)
    return max(shared, *map(bytes_at, ops)), shared


def _users(trace: Trace) -> Mapping[int, set[int]]:
    """Return the ops that make, read or write each storage, and V for those that hold results."""
    users: defaultdict[int, set[int]] = defaultdict(set)
    for op, call in enumerate(trace.ops):
        for storage in (*call.reads, *call.writes, *call.creates):
            users[storage].add(op)
    for view in trace.results.values():
        users[view.storage].add(len(trace.ops))
    return users


def _bytes_of(parts: Sequence[Call], inside: set[int]) -> int:
    """Return the bytes of what parts read and write, but of what is there only between them."""
    read: defaultdict[int, int] = defaultdict(int)
    written: defaultdict[int, int] = defaultdict(int)
    for part in parts:
        for view in views_in((part.arguments, part.keywords, part.outputs)):
            if view.storage in inside:
                continue
            if view.storage in (*part.writes, *part.creates):
                written[view.storage] = max(written[view.storage], view.num_bytes)
            if view.storage not in part.creates:
                read[view.storage] = max(read[view.storage], view.num_bytes)
    return sum(read.values()) + sum(written.values())
