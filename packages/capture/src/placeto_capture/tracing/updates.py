"""The updates of a trace: each one op, and barriers behind the backward passes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from placeto_capture.costs.op_classes import OpClass, class_of_type
from placeto_capture.tracing.trace import Call, Op, Placeholder, Trace, View, views_in
from placeto_graphs import Phase

# Classes of the ops that fused optimizers run in one kernel: not the products of Muon.
CLASSES_OF_UPDATES = {OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.COPY}


def with_whole_updates(trace: Trace) -> Trace:
    """Return a trace in which the `_kernels` of updates are ops of type ``"placeto.update"``.

    Each stands where its last op stood, and leaves out ops that others depend on, such as norms.
    What is there only between its ops is workspace; while ops of other weights run, as with
    ``foreach``, a tensor.
    """
    users = _users(trace)
    kernels = (kernel for ops in _updates(trace) for kernel in _kernels(trace, ops))
    undisturbed = (_undisturbed_ops(trace, ops, users) for ops in kernels)
    merged = {
        ops[-1]: ops
        for ops in undisturbed
        if len(ops) > 1
        and CLASSES_OF_UPDATES.issuperset(class_of_type(trace.ops[op].op_type) for op in ops)
    }
    removed = {op for ops in merged.values() for op in ops[:-1]}
    remaining = [op for op in range(len(trace.ops)) if op not in removed]
    place = {op: index for index, op in enumerate(remaining)}
    place |= {op: place[last] for last, merged_ops in merged.items() for op in merged_ops}
    ends: dict[int, int] = {}
    begin = end = len(trace.ops)  # of updates that run between each other
    for last, merged_ops in sorted(merged.items(), reverse=True):
        inside = (
            s for op in merged_ops for s in trace.ops[op].creates if users[s] <= {*merged_ops}
        )
        until = max([last + 1, *(trace.deaths.get(s, len(trace.ops)) for s in inside)])
        end = max(end, until) if until > begin else until
        begin = min(begin, merged_ops[0])
        ends[last] = end
    storage_bytes, deaths = [*trace.storage_bytes], {**trace.deaths}
    held_storages = {*trace.held_storages}
    ops: list[Op] = []
    for op in remaining:
        traced_op = trace.ops[op]
        if op in merged:
            traced_op, shared_bytes = _whole(trace, merged[op], users)
            if shared_bytes:
                storage = len(storage_bytes)
                storage_bytes.append(shared_bytes)
                traced_op.creates = (*traced_op.creates, storage)
                deaths[storage] = ends[op]
                if deaths[storage] == len(trace.ops):
                    held_storages.add(storage)
        ops.append(_moved(traced_op, place))
    return replace(
        trace,
        ops=ops,
        storage_bytes=storage_bytes,
        deaths=_moved_deaths(deaths, place, len(ops)),
        held_storages=frozenset(held_storages),
    )


def with_barriers(trace: Trace) -> Trace:
    """Return a trace with ops ``"placeto.barrier"`` before updates.

    They belong to the first weight that is updated, so that they are in no group of their own.
    There is also one before a forward pass that begins right after a backward pass.
    """
    barriers: dict[int, list[Call]] = {}
    phase = Phase.FORWARD
    for op, traced_op in enumerate(trace.ops):
        if isinstance(traced_op, Call):
            begins_update = traced_op.phase == Phase.UPDATE and phase != Phase.UPDATE
            if begins_update or (traced_op.phase == Phase.FORWARD and phase == Phase.BACKWARD):
                barriers[op] = [_barrier_before(trace.ops, op, traced_op.phase)]
            phase = traced_op.phase
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
        later = (traced_op for traced_op in ops[op:] if isinstance(traced_op, Call))
        scope, calls = "optimizer", takewhile(lambda call: call.phase == Phase.UPDATE, later)
        owners = [call.belongs_to for call in calls]
    else:
        scope, owners = "loss", [traced_op.belongs_to for traced_op in reversed(ops[:op])]
    owner = next((candidate for candidate in owners if candidate is not None), None)
    return Call(None, scope=scope, phase=phase, belongs_to=owner)


def _moved(traced_op: Op, place: Mapping[int, int]) -> Op:
    """Return an op with the new indices of those that it names."""
    owner = None if traced_op.belongs_to is None else place[traced_op.belongs_to]
    if isinstance(traced_op, Placeholder):
        return replace(traced_op, belongs_to=owner)
    return replace(
        traced_op,
        belongs_to=owner,
        waits_for=tuple(dict.fromkeys(place[op] for op in traced_op.waits_for)),
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


def _kernels(trace: Trace, ops: list[int]) -> Iterable[list[int]]:
    """Return the ops of the update of a weight in parts that are launched together.

    They are all of a fused update; those of functions of lists, which all weights share; all on a
    processor, one weight after the other; and numbers of the state, such as a count of steps, which
    the host has, with the op after them. Any other op is launched by itself.
    """
    if trace.ops[ops[0]].update in trace.fused:
        return [ops]
    kernels = [ops[:1]]
    for op in ops[1:]:
        last = trace.ops[kernels[-1][-1]]
        share_launch = last.shares_launch and trace.ops[op].shares_launch
        if share_launch or _is_of_host(trace, last):
            kernels[-1].append(op)
        else:
            kernels.append([op])
    return kernels


def _is_of_host(trace: Trace, op: Op) -> bool:
    """Return whether an op changes nothing but numbers that an optimizer keeps."""
    owner = None if op.belongs_to is None else trace.ops[op.belongs_to]
    if not isinstance(owner, Placeholder) or not op.writes or op.creates:
        return False
    is_of_numbers = not any(view.size for call in op.single_calls for view in _views_of(call))
    return is_of_numbers and {*owner.storages}.issuperset(op.writes)


def _undisturbed_ops(trace: Trace, ops: list[int], users: Mapping[int, set[int]]) -> list[int]:
    """Return the last ones of some ops that nothing between them disturbs."""
    update_ops = set(ops)
    calls = [trace.ops[op] for op in ops]
    written = {storage for call in calls for storage in (*call.writes, *call.creates)}
    read = {storage for call in calls for storage in call.reads}
    disturbing_ops = {
        op
        for storage in written | read
        for op in users[storage] - update_ops
        if op < ops[-1]
        and (storage in written or storage in (*trace.ops[op].writes, *trace.ops[op].creates))
    }
    last = max(disturbing_ops, default=-1)
    return [op for op in ops if op > last]


def _whole(trace: Trace, ops: Sequence[int], users: Mapping[int, set[int]]) -> tuple[Call, int]:
    """Return an op that stands for some, and the most bytes between them while others run."""
    calls = tuple(call for op in ops for call in trace.ops[op].single_calls)
    created = {storage for call in calls for storage in call.creates}
    update_ops = set(ops)
    outliving = {storage for storage in created if not users[storage] <= update_ops}
    reads = dict.fromkeys(s for call in calls for s in call.reads if s not in created)
    writes = dict.fromkeys(s for call in calls for s in call.writes if s not in created)
    peak_bytes, shared_bytes = _bytes_between(trace, ops, created - outliving)
    is_fused = calls[0].update in trace.fused
    whole = replace(
        calls[-1],
        arguments=(),
        keywords={},
        outputs=(),
        reads=tuple(storage for storage in reads if storage not in writes),
        writes=tuple(writes),
        creates=tuple(sorted(outliving)),
        flops=sum(call.flops for call in calls),
        bytes_accessed=(
            _bytes_of(calls, created - outliving)
            if is_fused
            else sum(call.bytes_accessed for call in calls)
        ),
        belongs_to=next(call.belongs_to for call in calls if call.belongs_to is not None),
        rng_index=None,
        merged_calls=calls,
        workspace_bytes=peak_bytes - shared_bytes,
    )
    return whole, shared_bytes


def _bytes_between(trace: Trace, ops: Sequence[int], inside: set[int]) -> tuple[int, int]:
    """Return the most bytes of what is there only between some ops, and while others run."""
    if trace.ops[ops[0]].update in trace.fused:
        return 0, 0
    maker = {storage: op for op in ops for storage in trace.ops[op].creates if storage in inside}

    def bytes_at(op: int) -> int:
        living = (s for s in maker if maker[s] <= op < trace.deaths.get(s, len(trace.ops)))
        return sum(trace.storage_bytes[s] for s in living)

    between = {op + 1 for op in ops[:-1] if trace.ops[op + 1].belongs_to is not None}.difference(
        ops
    )
    shared = max((bytes_at(op) for op in between), default=0)
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


def _views_of(call: Call) -> list[View]:
    return views_in((call.arguments, call.keywords, call.outputs))


def _bytes_of(calls: Sequence[Call], inside: set[int]) -> int:
    """Return the bytes of what calls read and write, but of what is there only between them."""
    read: defaultdict[int, int] = defaultdict(int)
    written: defaultdict[int, int] = defaultdict(int)
    for call in calls:
        for view in _views_of(call):
            if view.storage in inside:
                continue
            if view.storage in (*call.writes, *call.creates):
                written[view.storage] = max(written[view.storage], view.num_bytes)
            if view.storage not in call.creates:
                read[view.storage] = max(read[view.storage], view.num_bytes)
    return sum(read.values()) + sum(written.values())
