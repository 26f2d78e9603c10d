"""Holds the code of each room of the repository below its number of tokens, as `sizes.txt` has it.

Begin to read at `count_tokens`. ``./pants lint ::`` checks all rooms, and so does
``python pants-plugins/repository/sizes.py``, which with ``--write`` writes the table anew.
"""

import io
import re
import sys
import tokenize
from pathlib import Path

TABLE = "pants-plugins/repository/sizes.txt"
COUNTED = re.compile(r"\.(py|js)$")
MARGIN = 0.03  # of the tokens that stand when the table is written
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
# From Python 3.12 on, an f-string is several tokens. Here it is one, as before.
BEGINS_STRING = getattr(tokenize, "FSTRING_START", None)
ENDS_STRING = getattr(tokenize, "FSTRING_END", None)
# Of JavaScript: comments, which do not count; texts; words and numbers; signs, one by one.
JAVASCRIPT = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`|[\w$]+|[^\w\s]""",
    re.DOTALL,
)


def count_tokens(name: str, text: str) -> int:
    """Return the number of tokens of a file: no comments, docstrings, line ends and indents."""
    if name.endswith(".js"):
        return sum(match["comment"] is None for match in JAVASCRIPT.finditer(text))
    count = 0
    statement: list[int] = []  # kinds of its tokens
    open_strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            is_docstring = set(statement) == {tokenize.STRING}
            count += 0 if is_docstring else len(statement)
            statement = []
            continue
        if token.type == ENDS_STRING:
            open_strings -= 1
        elif open_strings == 0 and token.type not in LAYOUT:
            statement.append(token.type)
        if token.type == BEGINS_STRING:
            open_strings += 1
    return count


def read_table(table: str) -> dict[str, int]:
    """Return the limit of each folder of a table ``FOLDER TOKENS``."""
    rows = (line.split() for line in table.splitlines() if line and not line.startswith("#"))
    return {folder: int(limit) for folder, limit in rows}


def write_table(table: str, files: dict[str, bytes]) -> str:
    """Return a table of the same folders with limits a little above what stands."""
    comments = [line for line in table.splitlines() if line.startswith("#")]
    sizes = {folder: size_of_folder(files, folder) for folder in read_table(table)}
    rows = [f"{folder} {round(size * (1 + MARGIN))}" for folder, size in sizes.items()]
    return "\n".join([*comments, *rows, ""])


def size_of_folder(files: dict[str, bytes], folder: str) -> int:
    """Return the tokens of the code below a folder."""
    size = 0
    for name, content in files.items():
        if name.startswith(f"{folder}/"):
            size += count_tokens(name, content.decode())
    return size


def too_large(table: str, files: dict[str, bytes]) -> list[str]:
    """Return a line for each folder with more tokens than its limit."""
    lines = []
    for folder, limit in read_table(table).items():
        size = size_of_folder(files, folder)
        if size > limit:
            lines.append(
                f"{folder}: {size:,} tokens of code, more than {limit:,}: make the code simpler, "
                f"or write {TABLE} anew and say why in the commit"
            )
    return lines


if __name__ == "__main__":
    path = Path(TABLE)
    table = path.read_text()
    code = {
        str(file): file.read_bytes()
        for folder in read_table(table)
        for file in Path(folder).rglob("*")
        if COUNTED.search(file.name)
    }
    if "--write" in sys.argv[1:]:
        table = write_table(table, code)
        path.write_text(table)
    for folder, limit in read_table(table).items():
        print(f"{folder:<26} {size_of_folder(code, folder):>7,} of {limit:>7,}")
    lines = too_large(table, code)
    if lines:
        sys.exit("\n".join(lines))
