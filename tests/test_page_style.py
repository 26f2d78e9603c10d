"""The check of pages finds what the style sheet excludes, and nothing in plain sentences."""

import importlib.util
from pathlib import Path

import pytest

CHECKER = Path("pants-plugins/page_style/checker.py")
spec = importlib.util.spec_from_file_location("page_style_checker", CHECKER)
assert spec is not None
assert spec.loader is not None
checker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)

TABLE = "| a | b |\n|---|---|\n"
GOOD = f"""# A page

A sentence of a few words: it ends here. Why? Code such as `for member in schemes: walk(member)` and
[links](beside.md) count as words.

- An item
- **Another one.** {"word " * 20}.

{TABLE}{"| 1 | 2 |" * 20}

```
{"beside " * 50}
```
"""


def found(text: str) -> list[str]:
    return [line.removeprefix("page.md:") for line in checker.findings("page.md", text)]


def test_nothing_is_found_on_a_plain_page() -> None:
    assert found(GOOD) == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            "# Page\n\nWord.\nOne " + "word " * 24 + "\nends.",
            "4: sentence: 26 words, more than 25:",
        ),
        ("- Item.\n- " + "word " * 26, "2: sentence: 26 words, more than 25:"),
        ("Short. What is given is a sentence.", "1: sentence: begins with What:"),
        ("```\ncode\n```\n\nThe placer walks\non.", "5: term: 'walks'; write: annealing chain"),
        ("| head |\n|---|\n| two members |", "3: term: 'members'; write: op, family graph"),
        ("Times\nin place\nof costs.", "2: term: 'in place of'; write: instead of"),
        ("# " + "long " * 13, "1: heading: more than 60 characters"),
        (TABLE + "| 1 | 2 |\n" * 21, "1: rows: 21, more than 20"),
        ("Text.\n\n" + "|a" * 9 + "|\n" + "|-" * 9 + "|\n", "3: columns: 9, more than 8"),
        ("Line.\n" * 201, "201: lines: more than 200"),
    ],
)
def test_each_kind_of_finding_has_its_line(text: str, where: str) -> None:
    (line,) = found(text)
    assert line.startswith(where)


def test_pages_are_read_and_generated_results_are_not() -> None:
    pages = ["README.md", "docs/index.md", "packages/graphs/README.md", "tools/README.md"]
    others = ["docs/results/table1.md", "lab/README.md", "packages/graphs/CHANGELOG.md"]
    assert [page for page in (*pages, *others) if checker.PAGE.fullmatch(page)] == pages
