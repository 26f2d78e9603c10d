"""The checks of ``./pants lint``: pages by the style sheet, and rooms by their number of lines."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

TABLE = "| a | b |\n|---|---|\n"
GOOD = f"""# A page

A sentence of a few words: it ends here. Why? Code such as `for member in schemes: walk(member)` and
[links](beside.md) count as words.

- **An item.** {"word " * 20}.

{TABLE}{"| 1 | 2 |" * 20}

```
{"beside " * 50}
```
"""


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the package of the checks, which Pants imports from its folder of plug-ins."""
    monkeypatch.syspath_prepend(Path("pants-plugins").resolve())
    for check in ("pages", "sizes"):
        importlib.import_module(f"repository.{check}")
    return sys.modules["repository"]


WORDS = "word " * 26


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (GOOD, None),
        (f"# Page\n\nWord.\nOne {WORDS}\nends.", "4: sentence: 28 words, more than 25:"),
        ("Short. What is given is a sentence.", "1: sentence: begins with What:"),
        ("```\ncode\n```\n\nThe placer walks\non.", "5: term: 'walks'; write: annealing chain"),
        ("Times\nin place\nof costs.", "2: term: 'in place of'; write: instead of"),
        (TABLE + "| 1 | 2 |\n" * 21, "1: rows: 21, more than 20"),
        ("Text.\n\n" + "|a" * 9 + "|\n" + "|-" * 9 + "|\n", "3: columns: 9, more than 8"),
        ("Line.\n" * 201, "201: lines: more than 200"),
    ],
)
def test_each_kind_of_finding_has_its_line(checks: Any, text: str, where: str | None) -> None:
    assert checks.pages.PAGE.fullmatch("packages/graphs/README.md")
    assert not checks.pages.PAGE.fullmatch("docs/results/table1.md")
    lines = checks.pages.findings("page.md", text)
    assert [line.startswith(f"page.md:{where}") for line in lines] == [True] * bool(where)


def test_a_room_may_have_its_number_of_lines_and_no_more(checks: Any) -> None:
    files = {"one/a.py": b"a\nb\n", "one/deep/b.js": b"c\n", "one-more/c.py": b"d\n" * 9}
    assert checks.sizes.too_large("# Rooms\none 3\none-more 9\nempty 0\n", files) == []
    (line,) = checks.sizes.too_large("one 2\none-more 9\n", files)
    assert line.startswith("one: 3 lines, more than 2: ")
