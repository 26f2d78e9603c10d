import shutil
import subprocess
from pathlib import Path

import pytest

from placeto.trials import folder

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]


def test_sources_that_were_changed_are_told_of_every_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "tools" / "src" / "folder.py"
    other = tmp_path / "packages" / "simulator" / "src" / "clock.py"
    for path in (here, other):
        path.parent.mkdir(parents=True)
    shutil.copy(folder.__file__, here)
    other.write_text("SECONDS = 1")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*GIT, *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(folder, "__file__", str(here))
    head = folder.commit()
    assert head
    assert not head.endswith("+")
    (tmp_path / "results.md").write_text("not a source")
    assert folder.commit() == head
    other.write_text("SECONDS = 2")
    assert folder.commit() == f"{head}+"
    other.write_text("SECONDS = 1")
    assert folder.commit() == head
    other.with_name("new.py").write_text("")
    assert folder.commit() == f"{head}+"
