"""Values that a step knows beforehand, or that are assumed: a pass over what was recorded.

Fake tensors have no values, but a value that code uses in the middle of a step is often known.
Examples are the rates of a schedule, the offsets of a window, and a mask of positions. Such a value
is computed when it is used, by running the few ops again that led to it, on real tensors. Random
numbers are those that `replay` draws with the seed 0.

Three things are assumed of other values. Numbers are finite, so tests for infinities and NaN have
one answer. Choices by unknown scores, such as the experts of a word, are fair: the scores are
drawn, independent and alike. And checks pass: for an ``if`` that ends in ``raise``, or an
``assert``, the line of code tells which answer lets the step continue.
"""

import ast
import linecache
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.fake_results import UNSCALE
from placeto_capture.tracing.functions import SHAPED_ALIKE, function_of
from placeto_capture.tracing.prepared_calls import prepared
from placeto_capture.tracing.replay import Memory
from placeto_capture.tracing.trace import Call, Placeholder, Trace, View, views_in

CONSTANT = "constant"  # the name of a tensor that is no parameter, buffer or input
LARGEST_BYTES = 2**26  # of all that has to be computed for a value


class KnownValues:
    """Which values a step knows, and what follows from them; storages may be added later."""

    def __init__(self, storages: Sequence[torch.UntypedStorage]) -> None:
        self._storages = storages
        self._known: set[int] = set()
        self._placeholder_of_storage: dict[int, Placeholder] = {}
        self._calls: dict[int, Call] = {}  # those whose results are known, by op
        self._writers: defaultdict[int, list[int]] = defaultdict(list)  # of these, by storage
        self._assumptions: dict[int, Assumption] = {}

    def add(self, placeholder: Placeholder) -> None:
        """Note a placeholder if its values may decide what runs: no weights, no measured data."""
        values = placeholder.values.values()
        is_constant = (
            placeholder.op_type == "buffer" or placeholder.name.rpartition(".")[2] == CONSTANT
        )
        says = is_constant or not any(v.is_floating_point() or v.is_complex() for v in values)
        has_values = not any(v.is_meta or isinstance(v, FakeTensor) for v in values)
        if says and has_values and placeholder.op_type != "parameter":
            self._known.update(placeholder.storages)
            self._placeholder_of_storage.update(dict.fromkeys(placeholder.storages, placeholder))

    def follow(self, op: int, call: Call) -> None:
        """Note an op that ran: what it makes is known if all is that it depends on."""
        if call.function is UNSCALE:  # numbers are finite, so that what is found stays as it was
            self._known.difference_update(view.storage for view in call.arguments[0])
            return
        made = (*call.creates, *call.writes)
        asked = call.writes if call.op_type in SHAPED_ALIKE else (*call.reads, *call.writes)
        if not self._known.issuperset(asked):
            assumption = None if call.writes else assumption_of(call)
            if assumption is None:
                self._known.difference_update(made)
                return
            self._assumptions[op] = assumption
            made = tuple(view.storage for view in [call.outputs[assumption.output]] if view)
        elif function_of(call.function).allocates:  # there is no value in it yet
            return
        self._known.update(made)
        self._calls[op] = call
        for storage in made:
            self._writers[storage].append(op)

    def result(self, func: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return what a function gives for tensors whose values are known, which are views here.

        That is None where it depends on other values, or on uninitialised memory, or is too much
        work.
        """
        read = {view.storage for view in views_in((arguments, keywords))}
        if not self._known.issuperset(read):
            return None
        ops, needed = self._slice(read)
        sizes = {storage: self._storages[storage].nbytes() for storage in needed}
        if sum(sizes.values()) > LARGEST_BYTES:
            return None
        memory = Memory(self._trace(ops, sizes), torch.device("cpu"), _value, needed)
        without_modes = _disable_current_modes()
        with without_modes, torch.no_grad(), torch.random.fork_rng(devices=[]):
            for op in ops:
                self._run(op, memory)
            values = {name: memory.real(value) for name, value in keywords.items()}
            return func(*memory.real(arguments), **values)

    def answer(self, func: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return `result` with fake tensors in place of real ones."""
        return pytree.tree_map_only(torch.Tensor, _alike, self.result(func, arguments, keywords))

    def _slice(self, storages: set[int]) -> tuple[list[int], set[int]]:
        """Return the ops that some storages got their values from, and all storages they touch."""
        needed = set(storages)
        waiting = [-self._writers[storage][-1] for storage in needed if self._writers[storage]]
        heapify(waiting)
        ops: list[int] = []
        while waiting:
            op = -heappop(waiting)
            if ops and ops[-1] == op:
                continue
            ops.append(op)
            for storage in self._touched(op):
                needed.add(storage)
                earlier = bisect_left(self._writers[storage], op)
                if earlier:
                    heappush(waiting, -self._writers[storage][earlier - 1])
        return ops[::-1], needed

    def _touched(self, op: int) -> Iterable[int]:
        call = self._calls[op]
        read = () if op in self._assumptions else (*call.reads, *call.writes)
        return (*read, *call.creates)

    def _trace(self, ops: Sequence[int], sizes: Mapping[int, int]) -> Trace:
        placeholders = {
            id(placeholder): placeholder
            for storage in sizes
            if (placeholder := self._placeholder_of_storage.get(storage)) is not None
        }
        return Trace([*placeholders.values(), *(self._calls[op] for op in ops)], sizes, {})

    def _run(self, op: int, memory: Memory) -> None:
        call = self._calls[op]
        if op not in self._assumptions:
            memory.run(call, seed=0)
            return
        assumption = self._assumptions[op]
        result: list[Any] = [None] * len(call.outputs)
        result[assumption.output] = assumption.make(op)
        memory.keep(prepared(call, memory.slots), result)
        memory.finish(call)


def _alike(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)


def _value(placeholder: Placeholder, name: str, _: View) -> torch.Tensor:
    return placeholder.values[name].detach()


aten = torch.ops.aten

# Tests of numbers that are false of finite ones, and what equal ones say.
_TESTS = {aten.isinf.default, aten.isnan.default, aten.isneginf.default, aten.isposinf.default}
_EQUALITIES = {
    aten.eq.Scalar: True,
    aten.eq.Tensor: True,
    aten.ne.Scalar: False,
    aten.ne.Tensor: False,
}

# Functions that choose, and which of their results are the indices of what is chosen.
_CHOICES = {
    aten.argmax.default: 0,
    aten.argmin.default: 0,
    aten.max.dim: 1,
    aten.min.dim: 1,
    aten.multinomial.default: 0,
    aten.sort.default: 1,
    aten.sort.stable: 1,
    aten.topk.default: 1,
}


class Assumption(NamedTuple):
    """The output of a call that is assumed, as values are not known, and its value for a seed."""

    output: int
    make: Callable[[int], torch.Tensor]


def assumption_of(call: Call) -> Assumption | None:
    """Return what is assumed of a call; None if nothing is."""
    says = _says_of_finite_numbers(call)
    view = call.outputs[0] if call.outputs else None
    if says is not None and view is not None:
        size = view.size
        return Assumption(0, lambda _seed: torch.full(size, says))
    chosen = _CHOICES.get(call.function)
    if chosen is not None:
        return Assumption(chosen, lambda seed: _drawn(call, chosen, seed))
    return None


def _says_of_finite_numbers(call: Call) -> bool | None:
    if call.function in _TESTS:
        return False
    if call.function in _EQUALITIES:
        left, right = call.arguments
        if left == right:  # only what is no number differs from itself
            return _EQUALITIES[call.function]
        if isinstance(right, float) and abs(right) == float("inf"):
            return not _EQUALITIES[call.function]
    return None


def _drawn(call: Call, chosen: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)

    def scores(value: Any) -> Any:
        return torch.rand(value.size, generator=generator) if isinstance(value, View) else value

    torch.manual_seed(seed)  # of what draws itself
    keywords = {name: scores(value) for name, value in call.keywords.items()}
    result = call.function(*map(scores, call.arguments), **keywords)
    indices: torch.Tensor = result[chosen] if isinstance(result, tuple) else result
    return indices


_TORCH = Path(torch.__file__).parent
# Code that stands between the line that asks and capture.
_BETWEEN = (
    str(Path(__file__).parent),
    str(_TORCH / "_subclasses"),
    str(_TORCH / "_dynamo"),
    str(_TORCH / "_compile.py"),
    str(_TORCH / "_ops.py"),
    str(_TORCH / "overrides.py"),
    str(_TORCH / "utils" / "_device.py"),
    str(_TORCH / "utils" / "_python_dispatch.py"),
)

Position = tuple[int, int]  # line and column
Span = tuple[Position, Position]


def assumed_answer(func: Any, place: str) -> bool:
    """Return what the check that asks for a value has to hear to pass; refuse what is no check.

    It is called while the value is asked for. The test may be made of several with ``not``, ``and``
    and ``or``, and each then hears what lets the whole pass.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    answer = None if frame is None else _answer_in(frame)
    if answer is None:
        raise CaptureError(
            f"{place}: {func.overloadpacket} asks for the value of a tensor, as .item(), bool(), "
            "int() or an if on a tensor do, and capture has none; choose between tensors with "
            "torch.where or a mask, or decide by numbers that are not tensors"
        ) from None
    return answer


def _answer_in(frame: FrameType) -> bool | None:
    positions = list(frame.f_code.co_positions())
    running = frame.f_lasti // 2
    here, before = (_span(positions[index]) for index in (running, running - 1))
    if here is None:
        return None
    for test, answer in _tests(frame.f_code.co_filename):
        # Either the value that is asked for is the test, or a jump asks for what was made before.
        jumps = before is not None and _contains(here, test) and _contains(test, before)
        if here == test or jumps:
            return answer
    return None


def _span(found: tuple[int | None, int | None, int | None, int | None]) -> Span | None:
    line, end_line, column, end_column = found
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return (line, column), (end_line, end_column)


def _contains(outer: Span, inner: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


@lru_cache(maxsize=64)
def _tests(file: str) -> list[tuple[Span, bool]]:
    """Return where the tests of all checks of a file stand, and what each has to be."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    found: list[tuple[Span, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found += _parts(node.test, True)
        elif isinstance(node, ast.If) and _raises(node.body) != _raises(node.orelse):
            found += _parts(node.test, _raises(node.orelse))
    return found


def _raises(statements: list[ast.stmt]) -> bool:
    return bool(statements) and isinstance(statements[-1], ast.Raise)


def _parts(test: ast.expr, answer: bool) -> Iterator[tuple[Span, bool]]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not answer)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _parts(part, answer)
    elif test.end_lineno is not None and test.end_col_offset is not None:
        start = test.lineno, test.col_offset
        yield (start, (test.end_lineno, test.end_col_offset)), answer
