"""The file itself: data, a script and the drawing library in one page that fetches nothing."""

import html
import shlex
import sys
from importlib import resources
from typing import Any

from placeto.outputs import json_text
from placeto_tools import __version__

Report = dict[str, Any]


def report_page(title: str, problems: list[Report]) -> str:
    """Return the page of what `problem_report` returned for each problem."""
    from bokeh.resources import Resources  # noqa: PLC0415 (it takes a while)

    library = Resources(mode="inline", components=["bokeh", "bokeh-api"], log_level="error")
    parts = {
        "TITLE": html.escape(title),
        "STYLE": _ours("report.css"),
        "LIBRARY": library.render_js(),
        "DATA": embedded_json({"problems": problems, "made_by": _made_by()}),
        "GLUE": _ours("report.js"),
    }
    pieces = _ours("report.html").split("%%")  # text between the marks, and the marks
    return "".join(parts[piece] if n % 2 else piece for n, piece in enumerate(pieces))


def embedded_json(value: Any) -> str:
    """Return JSON that a script element may hold: nothing in it ends the element or opens one."""
    text = json_text(value, indent=-1)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _made_by() -> str:
    return f"placeto {__version__}: {shlex.join(['placeto', *sys.argv[1:]])}"


def _ours(name: str) -> str:
    return resources.files("placeto_tools.reports").joinpath(name).read_text("utf-8")
