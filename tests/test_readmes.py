"""The lines of Python in each README run."""

import re
from pathlib import Path

import pytest

BLOCKS = {
    f"{path}, block {number}": block
    for path in (*sorted(Path("packages").glob("*/README.md")), Path("tools/README.md"))
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_lines_of_a_readme_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))
    exec(compile(BLOCKS[name], name, "exec"), {})  # noqa: S102


def test_the_packages_that_can_be_used_show_how() -> None:
    assert {name.split("/README")[0] for name in BLOCKS} == {
        "packages/baselines",
        "packages/execution",
        "packages/graphs",
        "packages/policy",
        "packages/simulator",
        "packages/workloads",
        "tools",
    }
