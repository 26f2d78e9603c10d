"""Settings of all tests."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test asserts how long something takes: the first example of a process compiles. What fails is
# decided by the sources and the seed alone, so that nothing is remembered from run to run.
settings.register_profile(
    "placeto",
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("placeto")


def seed_of_examples() -> int:
    """Return PLACETO_TEST_SEED, or else a number that every change of the sources changes.

    Each commit so sees other examples than the one before it, and a repeated run the same. In a
    sandbox of Pants the sources are those that its tests depend on: others do not run them again.
    """
    given = os.environ.get("PLACETO_TEST_SEED")
    if given:
        return int(given)
    hashed = hashlib.sha256()
    here = Path(__file__).parent
    for folder in ("packages", "tests", "tools"):
        for path in sorted((here / folder).rglob("*.py")):
            hashed.update(path.read_bytes())
    return int.from_bytes(hashed.digest()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the examples of Hypothesis from the seed, unless another one is given to pytest."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed_of_examples())


def pytest_report_header(config: pytest.Config) -> str:
    """Say how to draw the same examples again."""
    seed = config.option.hypothesis_seed
    return f"examples are drawn from the seed {seed}: PLACETO_TEST_SEED={seed} draws them again"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it again beside what failed."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(pytest_report_header(terminalreporter.config))
