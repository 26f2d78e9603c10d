"""Wrong uses of the command that a newcomer tries: one clear line each, all files as before."""

from pathlib import Path

import pytest

from command_runs import build_profile, fail


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a profile, its problem, a Python file, and files that are none."""
    path = tmp_path_factory.mktemp("newcomer")
    build_profile(path)
    (path / "my_model.py").write_text("def make(): ...\n")
    (path / "bytes.json").write_bytes(b"\x00\x01")
    (path / "empty.json").touch()
    (path / "other.json").write_text('{"a": 1}')
    (path / "a_folder").mkdir()
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("build missing.json -o a.json", "missing.json: No such file or directory"),
        ("build inception_v3 -o a.json", "no such model: expected inception-v3, or another of"),
        ("build a_folder -o a.json", "got a folder; write a_folder/ if it has the weights"),
        ("build my_model.py -o a.json", "name its function as my_model:FUNCTION"),
        ("build my_model.py:make -o a.json", "got a file; write my_model:make"),
        ("build graph.txt nmt-2 -o a.json", "unexpected extra argument (nmt-2)"),
        ("build graph.txt", "Missing option '-o'"),
        ("build graph.txt -o a.txt", "a.txt: expected a name that ends in .json or .json.gz"),
        ("build graph.txt -o problem.json", "problem.json: is there already; --force overwrites"),
        ("build graph.txt -o no/a.json", "no/a.json: the folder no is not there; make it first"),
        ("build graph.txt -o a_folder", "a_folder: expected a name that ends in .json"),
        ("build graph.txt --cluster 2xk8 -o a.json", "cluster: expected one of the kinds cpu, "),
        ("build graph.txt --cluster no.toml -o a.json", "no.toml: No such file or directory"),
        ("inspect bytes.json", "bytes.json: "),
        ("inspect empty.json", "empty.json: "),
        ("inspect other.json", "other.json: expected a problem file, a graph file or an"),
        ("place problem.json --seconds -3 -o a.json", "'--seconds': -3.0 is not in the range x>0"),
        ("place problem.json --placer hefty -o a.json", "'--placer': expected heft, or another"),
        ("place problem.json --policy no -o a.json", "no: No such file or directory"),
        ("place problem.json --policy graph.txt -o a.json", "graph.txt: expected a placeto-policy"),
        ("simulate problem.json", "Missing argument 'PLACEMENT'"),
        ("simulate problem.json k80:0", "expected a placement file, a device (v100:0, v100:1) or"),
        ("simulate problem.json other.json", "other.json: "),
        ("explain problem.json v100:0 no", "GROUP: expected a group of the problem, such as node"),
        ("export problem.json v100:0 --to onnx", "'--to': expected one of accelerate, torch, vllm"),
        ("compare graph.txt --placers heft,foo", "'--placers': expected one of cpu, single, "),
        ("compare graph.txt --placers heft -o other.json", "expected a folder, got a file"),
        ("compare graph.txt --placers heft -o .", ".: is there already, and not empty"),
        ("train problem.json", "Missing option '-o'"),
        ("train problem.json -o .", ".: is there already, and not empty"),
        ("run graph.txt v100:0", "other sources have no model to run"),
        ("run nmt-2 cpu:0 --devices gpu:0", "expected cpu:NUMBER or cuda:NUMBER, got 'gpu:0'"),
        ("calibrate -o a.json", "a.json: expected a name that ends in .toml"),
        ("plot problem.json v100:0 -o a.png", "No such command 'problem.json'"),
        ("plot placement problem.json v100:0 -o a.pdf", "expected a name that ends in .png"),
        ("plot curves a_folder -o a.png", "expected results.json or log.jsonl in it, got neither"),
        ("report problem.json -o a.html", "Missing argument 'PLACEMENT...'"),
    ],
)
def test_a_wrong_use_is_one_line_and_leaves_every_file(
    line: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = contents(folder)
    assert message in fail(*line.split())
    assert contents(folder) == before


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Return what is in a folder, compiled modules aside: the bytes of each file."""
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.read_bytes() if path.is_file() else None for path in found}
