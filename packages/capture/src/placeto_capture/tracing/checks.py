"""Checks of values: an ``if`` that ends in ``raise`` when the check fails, or an ``assert``.

Which way such a check falls is no question of the values: where it fails there is no step. The line
of code that asks for the value tells which answer lets the step go on.
"""

import ast
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType

import torch

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


def passing_answer() -> bool | None:
    """Return what the check that asks for a value has to hear to pass; None if it is no check.

    It is called while the value is asked for. The test may be made of several with ``not``, ``and``
    and ``or``, and each then hears what lets the whole pass.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return None if frame is None else _answer_in(frame)


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
