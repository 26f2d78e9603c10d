"""``placeto models --check``: a row for each model, each checked in a process of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from placeto.progress import Progress
from placeto.texts import TextTable, seconds_text
from placeto_experiments.model_check.checked_models import CheckedModel

Report = dict[str, Any]
SECONDS_BETWEEN_LOOKS = 0.1
COLUMNS = (
    "model",
    ">ops",
    ">parameters",
    ">TFLOP",
    ">capture",
    ">memory",
    ">groups",
    ">one V100",
    ">four V100s",
)


def check_models(
    models: Sequence[CheckedModel],
    progress: Progress,
    *,
    search_seconds: float,
    time_limit: float,
    memory_limit: float,
) -> list[Report]:
    """Check models one after the other; Ctrl-C leaves the others out.

    Parameters
    ----------
    models
        Which ones.
    progress
        Where a line stands about each.
    search_seconds
        How long the search for a placement has for each.
    time_limit
        Seconds after which a process is ended.
    memory_limit
        Bytes of memory in use from which on a process is ended.

    Returns
    -------
    list of dict
        Of each model ``model`` and the numbers of `placeto_experiments.model_check.model_check`, or
        ``error``.
    """
    reports: list[Report] = []
    with suppress(KeyboardInterrupt):
        for number, model in enumerate(models, 1):
            began = time.monotonic()
            progress.update(f"{model.command} ({number} of {len(models)}) ...")
            request = json.dumps([model.source, model.settings, search_seconds])
            report = _checked(_run(request, time_limit, memory_limit))
            reports.append({"model": model.command, **report})
            verdict = report.get("error") or f"{report['ops']:,} ops"
            taken = time.monotonic() - began
            progress.say(f"{number} of {len(models)}: {model.command}: {verdict}, {taken:.0f} s")
    return reports


def _checked(report: Report) -> Report:
    """Count a model whose weights are not those of the library as one that failed."""
    if "error" in report or report["weight_bytes"] == report["captured_weight_bytes"]:
        return report
    return {
        "error": f"expected {report['weight_bytes']:,} bytes of weights, "
        f"got {report['captured_weight_bytes']:,}"
    }


def _run(request: str, time_limit: float, memory_limit: float) -> Report:
    with _started(request) as process:
        end = time.monotonic() + time_limit
        while process.poll() is None:
            if time.monotonic() > end:
                return {"error": f"expected at most {time_limit:.0f} s, and took longer"}
            if _memory_of(process.pid) > memory_limit:
                return {"error": f"expected at most {memory_limit / 1e9:.0f} GB, and took more"}
            time.sleep(SECONDS_BETWEEN_LOOKS)
        assert process.stdout is not None  # noqa: S101 (it is a pipe)
        lines = process.stdout.read().splitlines()
    try:
        report: Report = json.loads(lines[-1])
    except (ValueError, IndexError):
        return {"error": f"the process ended with exit code {process.returncode}"}
    return report


@contextmanager
def _started(request: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a process; it is ended at the latest when this is left."""
    with subprocess.Popen(
        [sys.executable, "-m", "placeto_experiments.model_check.model_check"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None  # noqa: S101 (it is a pipe)
            process.stdin.write(request)
            process.stdin.close()
            yield process
        finally:
            process.kill()


def _memory_of(pid: int) -> int:
    """Return the bytes of memory that a process uses; 0 where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def model_table(reports: Sequence[Report]) -> TextTable:
    """Return the table of models, those that failed with their line."""
    return TextTable("", COLUMNS, [_row(report) for report in reports])


def success_line(reports: Sequence[Report]) -> str:
    """Return how many models succeeded.

    Examples
    --------
    >>> success_line([{"ops": 1}, {"error": "none"}])
    '1 of 2 models (50.0 %) from capture to a simulated placement.'
    """
    done = sum("error" not in report for report in reports)
    share = 100 * done / len(reports) if reports else 0.0
    return f"{done} of {len(reports)} models ({share:.1f} %) from capture to a simulated placement."


def _row(report: Report) -> list[str]:
    if "error" in report:
        return [report["model"], report["error"], *[""] * (len(COLUMNS) - 2)]
    return [
        report["model"],
        f"{report['ops']:,}",
        f"{report['parameters']:,}",
        f"{report['flops'] / 1e12:.3g}",
        f"{report['seconds']:.1f} s",
        f"{report['memory'] / 1e9:.1f} GB",
        str(report["groups"]),
        _runtime(report, "one_device"),
        _runtime(report, "searched"),
    ]


def _runtime(report: Report, key: str) -> str:
    """Return a runtime, with a star where the memory does not suffice."""
    return seconds_text(report[key]) + ("" if report[f"{key}_fits"] else "*")
