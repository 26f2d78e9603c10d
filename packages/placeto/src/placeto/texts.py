"""Tables of texts, and numbers with units, for people."""

from collections.abc import Sequence
from dataclasses import dataclass

from placeto.errors import printable

SECONDS = "s"
GIGABYTE, MEGABYTE, KILOBYTE = 10**9, 10**6, 10**3
IN_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "µ": r"\textmu{}",
}


@dataclass(frozen=True)
class TextTable:
    """A table of texts; columns that begin with ``>`` are of numbers, set to the right."""

    title: str  # above it; may be empty
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()  # below it

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rules = ["---:" if name.startswith(">") else "---" for name in self.columns]
        head = [name.removeprefix(">") for name in self.columns]
        lines = [
            [printable(cell).replace("|", "\\|") for cell in line]
            for line in (head, rules, *self.rows)
        ]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        remarks = "\n".join(f"- {printable(remark)}" for remark in self.remarks)
        return "\n\n".join(section for section in (self.title, body, remarks) if section)

    def latex(self) -> str:
        """Return the table in LaTeX, for the package booktabs."""
        alignment = "".join("r" if name.startswith(">") else "l" for name in self.columns)
        head, *rows = [
            " & ".join(map(latex_text, row)) + r" \\"
            for row in ([name.removeprefix(">") for name in self.columns], *self.rows)
        ]
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", head, r"\midrule", *rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par {latex_text(remark)}" for remark in self.remarks]
        return "\n".join([*lines, r"\end{table}"])


def latex_text(text: str) -> str:
    r"""Return a text for LaTeX, without characters that mean something there.

    Examples
    --------
    >>> latex_text("90 % of k80_0")
    '90 \\% of k80\\_0'
    """
    return "".join(IN_LATEX.get(character, character) for character in printable(text))


def counted(count: int, thing: str) -> str:
    """Return a number of things."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def seconds_text(seconds: float) -> str:
    """Return a duration with a unit."""
    rounded = float(f"{seconds:.4g}")
    if rounded >= 1000:
        return f"{seconds:,.0f} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if rounded >= size:
            return f"{seconds / size:#.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def cost_text(cost: float, unit: str = SECONDS) -> str:
    """Return a cost with its unit: seconds, unless an evaluator of the user has another one."""
    return seconds_text(cost) if unit == SECONDS else f"{cost:,.4g} {unit}"


def change_text(seconds: float) -> str:
    """Return a difference of durations with its sign and a unit."""
    if seconds == 0:
        return "nothing"
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def bytes_text(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit, size in (("GB", GIGABYTE), ("MB", MEGABYTE), ("kB", KILOBYTE)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} B"


def flops_text(count: float) -> str:
    """Return a number of floating-point operations with a unit."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {unit}FLOP"
    return f"{count:.4g} FLOP"


def share_text(share: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * share:.1f} %"
