"""Settings of all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Examples are few and the same in every run, so that an edit elsewhere turns no test red; with a
# seed they are others, and more. Nothing is remembered from run to run. No test asserts how long
# something takes, as the first example of a process compiles.
SEED = os.environ.get("PLACETO_TEST_SEED") or None
settings.register_profile(
    "placeto",
    derandomize=SEED is None,
    max_examples=50 if SEED is None else 200,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("placeto")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw other examples where a seed is given."""
    if SEED is not None and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to draw the same examples again, beside what failed."""
    if SEED is not None and terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"PLACETO_TEST_SEED={SEED} draws these examples again")
