"""Where results come from: the command that made them, and the commit of the sources."""

import shutil
import subprocess
from pathlib import Path

SOURCES = (":/packages", ":/tools")


def commit() -> str | None:
    """Return the commit of the checkout that this code runs from; None where it is installed.

    A ``+`` behind it says that sources of any package were changed since, or are new.
    """
    here = Path(__file__)
    head = _git("rev-parse", "--short", "HEAD")
    if head is None or _git("ls-files", "--error-unmatch", here.name) is None:
        return None
    return f"{head}+" if _git("status", "--porcelain", "--", *SOURCES) else head


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run(  # noqa: S603 (arguments of this module's own)
        [git, *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else None
