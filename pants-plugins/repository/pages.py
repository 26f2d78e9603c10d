"""Checks pages: lengths of sentences, headings, tables and pages, and words of the glossary.

Begin to read at `findings`. ``./pants lint ::`` checks all pages, and
``python pants-plugins/repository/pages.py FILE...`` single ones.
"""

import re
import sys
from pathlib import Path

PAGE = re.compile(r"(docs/[^/]+|((packages/[^/]+|tools)/)?README)\.md")
MOST_WORDS = 25  # of a sentence; a colon or semicolon ends one, too
MOST_CHARACTERS = 60  # of a heading
MOST_LINES = 200  # of a page
MOST_COLUMNS, MOST_ROWS = 8, 20  # of a table

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
    found = [] if len(lines) <= MOST_LINES else [(len(lines), "lines", f"more than {MOST_LINES}")]
    for first, block in _blocks(lines):
        if block[0].startswith("|"):
            found += _table(first, block)
        elif block[0].startswith("#"):
            long = len(block[0].lstrip("# ")) > MOST_CHARACTERS
            found += [(first, "heading", f"more than {MOST_CHARACTERS} characters")] * long
        else:
            found += _sentences(first, block)
    for term, instead in GLOSSARY.items():
        pattern = rf"\b({term})\b".replace(" ", r"\s+")  # a line may end within a term
        for match in re.finditer(pattern, words, re.IGNORECASE):
            number = words.count("\n", 0, match.start()) + 1
            found.append((number, "term", f"{' '.join(match[0].split())!r}; write: {instead}"))
    return [f"{name}:{number}: {what}: {said}" for number, what, said in sorted(found)]


def _without_code(text: str) -> str:
    """Return the words of a page, in their lines: no code, comments and targets of links."""
    for pattern, instead in CODE.items():
        text = pattern.sub(lambda match: instead + "\n" * match[0].count("\n"), text)  # noqa: B023
    return text


def _blocks(lines: list[str]) -> list[tuple[int, list[str]]]:
    """Return paragraphs, items of lists, headings and tables, each with its first line's number."""
    blocks: list[tuple[int, list[str]]] = []
    previous = ""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        in_table = text.startswith("|") and previous.startswith("|")
        begins = re.match(r"#|!|\||[-*] |\d+\. ", text) or not previous or previous[0] in "#|"
        if text and (in_table or not begins):
            blocks[-1][1].append(text)
        elif text:
            blocks.append((number, [text]))
        previous = text
    return blocks


def _table(first: int, rows: list[str]) -> list[tuple[int, str, str]]:
    columns = rows[0].count("|") - 1
    wide = [(first, "columns", f"{columns}, more than {MOST_COLUMNS}")] * (columns > MOST_COLUMNS)
    count = len(rows) - 2
    return wide + [(first, "rows", f"{count}, more than {MOST_ROWS}")] * (count > MOST_ROWS)


def _sentences(first: int, block: list[str]) -> list[tuple[int, str, str]]:
    found = []
    text = ABBREVIATION.sub(r"\1", "\n".join(block))
    begins = 0
    for sentence in END_OF_SENTENCE.split(text):
        begins = text.index(sentence, begins)
        number = first + text.count("\n", 0, begins)
        begins += len(sentence)
        words = len(WORD.findall(sentence))
        shown = " ".join(sentence.split())[:60]
        if words > MOST_WORDS:
            found.append((number, "sentence", f"{words} words, more than {MOST_WORDS}: {shown}"))
        if re.match(r"(\d+\. |[-*] )?What\b[^?]*$", sentence):
            found.append((number, "sentence", f"begins with What: {shown}"))
    return found


if __name__ == "__main__":
    every = [line for file in sys.argv[1:] for line in findings(file, Path(file).read_text())]
    print("\n".join(every))
    sys.exit(bool(every))
