import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from example_graphs import diamond_problem
from placeto_graphs import load_problem, save_problem
from placeto_graphs.files import storage


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "problem.json"
    save_problem(diamond_problem(), path)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left on device"):
        save_problem(diamond_problem(), path)
    assert load_problem(path) == diamond_problem()
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "content"
    storage.write_atomically(path, b"0" * 1_000_000)
    script = (
        "import sys\n"
        "from placeto_graphs.files.storage import write_atomically\n"
        "print('begins', flush=True)\n"
        "for number in range(10**9):\n"
        "    write_atomically(sys.argv[1], str(number % 10).encode() * 1_000_000)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(path)]
    for delay in (0.01, 0.02, 0.03):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as writer:
            assert writer.stdout
            writer.stdout.readline()
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        content = path.read_bytes()
        assert content == content[:1] * 1_000_000


def test_a_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    storage.write_atomically(tmp_path / "written", b"")
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_link_still_points_to_the_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "target")
    storage.write_atomically(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "target").read_bytes() == b"content"
