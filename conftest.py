"""Settings of all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

# All processes of tests share captured graphs, so that a large model is captured once. Each is
# kept by what decides how it comes out, sources included.
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
os.environ.setdefault("PLACETO_CACHE_DIR", os.path.join(CACHE, "placeto", "tests"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settle which tests run, and what examples are drawn.

    Slow tests are those of continuous integration. Examples are few and the same in every run, so
    that an edit elsewhere turns no test red; with a seed they are others, and more. Nothing is
    remembered from run to run. No test asserts how long something takes, as the first example of a
    process compiles.
    """
    if os.environ.get("PLACETO_TESTS") != "all":
        config.option.markexpr = config.option.markexpr or "not slow"
    seed = config.option.hypothesis_seed or os.environ.get("PLACETO_TEST_SEED") or None
    config.option.hypothesis_seed = seed
    settings.register_profile(
        "placeto",
        derandomize=seed is None,  # or else Hypothesis takes no notice of a seed
        max_examples=50 if seed is None else 200,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("placeto")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to draw the same examples again, beside what failed."""
    seed = terminalreporter.config.option.hypothesis_seed
    if seed is not None and terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"PLACETO_TEST_SEED={seed} draws these examples again")
