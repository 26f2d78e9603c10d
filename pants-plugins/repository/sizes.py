"""Holds each room of the repository at its number of lines, as `sizes.txt` has it.

``./pants lint ::`` checks all rooms. Whoever makes one larger changes its number in the same
commit, and says why in the message.
"""

import re
from pathlib import Path

TABLE = "pants-plugins/repository/sizes.txt"
COUNTED = re.compile(r"\.(py|js)$")


def rooms(table: str) -> dict[str, int]:
    """Return the most lines of each folder of a table ``FOLDER LINES``."""
    rows = (line.split() for line in table.splitlines() if line and not line.startswith("#"))
    return {folder: int(lines) for folder, lines in rows}


def lines_of(files: dict[str, bytes], folder: str) -> int:
    """Return the lines of the code below a folder."""
    texts = (text for name, text in files.items() if name.startswith(f"{folder}/"))
    return sum(text.count(b"\n") for text in texts)


def too_large(table: str, files: dict[str, bytes]) -> list[str]:
    """Return a line for each room with more lines than its number."""
    found = {room: (lines_of(files, room), most) for room, most in rooms(table).items()}
    return [
        f"{room}: {lines:,} lines, more than {most:,}: take lines away, or raise the number in "
        f"{TABLE} and say why in the commit"
        for room, (lines, most) in found.items()
        if lines > most
    ]


if __name__ == "__main__":
    code = {str(path): path.read_bytes() for path in Path().rglob("*") if COUNTED.search(path.name)}
    for room, most in rooms(Path(TABLE).read_text()).items():
        print(f"{room:<26} {lines_of(code, room):>7,} of {most:>7,}")
