"""Checks pages: lengths of sentences, headings, tables and pages, and words of the glossary.

Begin to read at `findings`. ``./pants lint ::`` checks all pages, and
``python pants-plugins/repository/pages.py FILE...`` single ones.
"""

import re
import sys
from pathlib import Path

PAGE = re.compile(r"(docs/[^/]+|((packages/[^/]+|tools)/)?README)\.md")
MAX_WORDS = 25  # of a sentence; a colon or semicolon ends one, too
MAX_CHARACTERS = 60  # of a heading
MAX_LINES = 200  # of a page
MAX_COLUMNS, MAX_ROWS = 8, 20  # of a table
Problem = tuple[int, str, str]  # its line, its kind, and what is wrong

# Words that pages do not use, as regular expressions, and words to write instead.
GLOSSARY = {
    r"(policy )?in the box": "bundled pretrained policy",
    r"as published": "paper configuration",
    r"(?<!Multilevel\s)schemes?": "placer",
    r"sweeps?": "round of coordinate descent",
    r"coarse[ -]to[ -]fine": "multilevel search",
    r"in finer groups": "finer level",
    r"walks?": "annealing chain",
    r"granularit(y|ies)": "level, number of groups",
    r"placements sampled": "evaluations",
    r"comes? to": "reaches",
    r"(is|are) worth": "effect",
    r"go(es)? on": "resume",
    r"on the mean": "on average",
    r"beside": "with, relative to, next to",
    r"in place of": "instead of",
    r"winners?": "chosen placement",
    r"own times": "times measured in the same run",
    r"in a row": "consecutive",
    r"departures?": "difference from the paper",
    r"members?": "op, family graph",
    r"hand(s|ed)? over": "transfer",
    r"what joins": "interconnect",
    r"hardly": "barely",
    r"drawn evenly": "sampled uniformly",
    r"crowding|lags": "a term of the scheduling literature",
    r"paced": "emulated time",
    r"corpus": "problem set",
    r"judged?": "evaluate",
    r"undivided": "without micro-batching",
    r"ours": "Placeto (default configuration)",
    r"best that is possible": "lower bound",
    r"knows|hears|nobody": "words for programs, not for people",
}
# Parts that are no words of a page, and what is read there instead.
CODE = {
    re.compile(r"^ *```.*?^ *```$|<!--.*?-->", re.DOTALL | re.MULTILINE): "",
    re.compile(r"^ {4}(?! *[-*\d]).*$", re.MULTILINE): "",
    re.compile(r"`[^`]*`"): "x",
    re.compile(r"\]\([^)]*\)"): "]",
}
WORD = re.compile(r"[\w%/.-]*\w[\w%/.-]*")
END_OF_SENTENCE = re.compile(r"(?<=[.!?:;])[)*]*\s+")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|et al|vs|No|Fig)\.")


def findings(name: str, text: str) -> list[str]:
    """Return a line ``file:line: what is wrong`` for each finding on a page."""
    words = _without_code(text)
    lines = words.splitlines()
    problems: list[Problem] = []
    if len(lines) > MAX_LINES:
        problems.append((len(lines), "lines", f"more than {MAX_LINES}"))
    for first, block in _blocks(lines):
        if block[0].startswith("|"):
            problems += _table(first, block)
        elif not block[0].startswith("#"):
            problems += _sentences(first, block)
        elif len(block[0].lstrip("# ")) > MAX_CHARACTERS:
            problems.append((first, "heading", f"more than {MAX_CHARACTERS} characters"))
    for term, instead in GLOSSARY.items():
        pattern = rf"\b({term})\b".replace(" ", r"\s+")  # a line may end within a term
        for match in re.finditer(pattern, words, re.IGNORECASE):
            line = words.count("\n", 0, match.start()) + 1
            problems.append((line, "term", f"{' '.join(match[0].split())!r}; write: {instead}"))
    return [f"{name}:{line}: {kind}: {message}" for line, kind, message in sorted(problems)]


def _without_code(text: str) -> str:
    """Return the words of a page, in their lines: no code, comments and targets of links."""
    for pattern, instead in CODE.items():
        text = pattern.sub(lambda match: instead + "\n" * match[0].count("\n"), text)  # noqa: B023
    return text


def _blocks(lines: list[str]) -> list[tuple[int, list[str]]]:
    """Return paragraphs, items of lists, headings and tables, each with its first line's number."""
    blocks: list[tuple[int, list[str]]] = []
    previous = ""
    for line_number, line in enumerate(lines, 1):
        text = line.strip()
        in_table = text.startswith("|") and previous.startswith("|")
        begins = re.match(r"#|!|\||[-*] |\d+\. ", text) or not previous or previous[0] in "#|"
        if text and (in_table or not begins):
            blocks[-1][1].append(text)
        elif text:
            blocks.append((line_number, [text]))
        previous = text
    return blocks


def _table(first: int, lines: list[str]) -> list[Problem]:
    problems = []
    columns, rows = lines[0].count("|") - 1, len(lines) - 2
    if columns > MAX_COLUMNS:
        problems.append((first, "columns", f"{columns}, more than {MAX_COLUMNS}"))
    if rows > MAX_ROWS:
        problems.append((first, "rows", f"{rows}, more than {MAX_ROWS}"))
    return problems


def _sentences(first: int, block: list[str]) -> list[Problem]:
    problems = []
    text = ABBREVIATION.sub(r"\1", "\n".join(block))
    begins = 0
    for sentence in END_OF_SENTENCE.split(text):
        begins = text.index(sentence, begins)
        line = first + text.count("\n", 0, begins)
        begins += len(sentence)
        words = len(WORD.findall(sentence))
        excerpt = " ".join(sentence.split())[:60]
        if words > MAX_WORDS:
            problems.append((line, "sentence", f"{words} words, more than {MAX_WORDS}: {excerpt}"))
        if re.match(r"(\d+\. |[-*] )?What\b[^?]*$", sentence):
            problems.append((line, "sentence", f"begins with What: {excerpt}"))
    return problems


if __name__ == "__main__":
    lines = [line for file in sys.argv[1:] for line in findings(file, Path(file).read_text())]
    if lines:
        sys.exit("\n".join(lines))
