"""Wrong uses of the command: one clear line each, all files as before."""

from pathlib import Path

import pytest

from command_runs import build_profile, fail
from placeto_graphs import parse_cluster, save_cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a profile, its problem, a Python file, and files that are none."""
    path = tmp_path_factory.mktemp("newcomer")
    build_profile(path)
    (path / "my_model.py").write_text("def make(): ...\n")
    (path / "bytes.json").write_bytes(b"\x00\x01")
    (path / "other.json").write_text('{"a": 1}')
    save_cluster(parse_cluster("2xv100"), path / "v100.toml")
    (path / "a_folder").mkdir()
    (path / "dir.json").mkdir()
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("build missing.json -o a.json", "missing.json: No such file or directory"),
        ("build my_model.py -o a.json", "name its function as my_model:FUNCTION"),
        ("build graph.txt -o a.txt", "a.txt: expected a name that ends in .json or .json.gz"),
        ("build graph.txt -o problem.json", "problem.json: exists; --force overwrites"),
        (
            "build graph.txt -o no/a.json",
            "no/a.json: the folder no does not exist; create it first",
        ),
        ("build graph.txt -o dir.json", "dir.json: expected a file, got a folder"),
        ("build graph.txt --cluster 2xk8 -o a.json", "cluster: expected k80, or another of cpu, "),
        ("inspect bytes.json", "bytes.json: "),
        ("place problem.json --policy graph.txt -o a.json", "graph.txt: expected a placeto-policy"),
        ("simulate problem.json k80:0", "expected a placement file, a device (v100:0, v100:1) or"),
        ("explain problem.json v100:0 no", "GROUP: expected a group of the problem, such as node"),
        ("compare missing.json -o other.json/a", "expected a folder, got a file: other.json"),
        ("build abc:1 -o a.json", "name: expected one of nmt, ptb, cifar10, ptb-enas"),
        ("build nmt-2 --set steps=3 --set steps=4 -o a.json", "steps: expected it once, got it"),
        ("build nmt-2 --batch-size 6 --micro-batches 4 -o a.json", "divides the batch size 6 of"),
        ("build nmt-2 --no-merging --groups 4 -o a.json", "--no-merging: excludes --groups"),
        ("build graph.txt --scope-pattern ( -o a.json", "expected a regular expression"),
        ("build problem.json --batch-size 3 -o a.json", "expected no sizes (--set, --batch-size"),
        ("build graph.txt --cluster v100.toml --link pcie -o a.json", "excludes the cluster file"),
        ("compare problem.json --link pcie", "--link: needs --cluster"),
        ("build missing.json --gpu-kind foo -o a.json", "'--gpu-kind': expected one of cpu, k80"),
        ("simulate problem.json v100.toml", "v100.toml: expected a placement file, a device (v100"),
        ("simulate problem.json cpu", "expected a device of the kind 'cpu'"),
        ("simulate problem.json rnn", "rnn: trains a policy, which takes minutes: give the file"),
        ("simulate problem.json v100:0 --trace problem.json", "problem.json: exists"),
        ("place problem.json --seconds nan -o a.json", "'--seconds': nan is not finite"),
        ("simulate problem.json v100:0 --measured 9", "expected a kind whose times are modelled,"),
        (f"build graph.txt -o {'a' * 300}.json", "aaa.json: File name too long"),
        (f"train missing.json -o {'a' * 300}", "aaa: File name too long"),
        ("simulate problem.json v100:0 --schedule 1f1b", "(--micro-batches), got none"),
        ("place problem.json --schedule 1f1b --objective throughput -o a.json", "--schedule: exc"),
        ("simulate problem.json random --measured 9", "expected everything on one device, got "),
        ("place problem.json --placer heft --policy run -o a.json", "excludes --placer"),
        ("place problem.json --placer heft --seconds 1 -o a.json", "--seconds: needs one of"),
        ("place problem.json --placer heft --seed 3 -o a.json", "--seed: needs one of"),
        ("place problem.json --rollouts 2 -o a.json", "--rollouts: needs --policy"),
        ("place problem.json --placer placeto --max-evaluations 178 -o a.json", "at least 179"),
        ("place problem.json --start pretrained --objective throughput -o a.json", "--start pre"),
        ("compare graph.txt --placers heft --seconds 1", "--seconds: needs one of"),
        ("compare graph.txt --placers heft --max-evaluations 3", "--max-evaluations: needs one of"),
        ("compare graph.txt --placers heft --full", "--full: needs one of paper, placeto, rnn in"),
        ("compare graph.txt --placers heft --seeds 2", "--seeds: needs one of scotch"),
        ("compare graph.txt --placers heft --force", "--force: needs -o"),
        ("compare graph.txt --gpus 2 --cluster 2xk80", "--cluster: excludes --gpus"),
        ("compare graph.txt --gpu-kind k80", "expected a known type, FLOPs, bytes or measured"),
        ("compare graph.txt --seconds 1 --max-evaluations 9", "excludes --max-evaluations"),
        ("train -o run", "needs PROBLEMS"),
        ("train problem.json --from graph.txt -o run", "graph.txt: expected a placeto-policy file"),
        ("place problem.json --start nothing --placer heft -o a.json", "--start: excludes --pla"),
        ("train problem.json --hparam x=1 -o run", "--hparam x: expected one of embedding,"),
        ("train problem.json --updates 1 --hparam updates=3 -o run", "updates: excludes --updates"),
        ("train missing.json -o .", ".: exists and is not empty"),
        ("train missing.json -o /proc/a", "/proc/a: No such file or directory"),
        ("compare missing.json --cluster 2xk8", "cluster: expected k80, or another of cpu, "),
        ("compare missing.json -o a_folder/..", "..: exists and is not empty"),
        ("build missing.json -o /proc/a.json", "/proc/a.json: No such file or directory"),
        ("export missing.json v100:0 --to dot -o /proc/a.dot", "/proc/a.dot: No such file or dire"),
        ("run graph.txt v100:0", "other sources have no model to run"),
        ("calibrate -o a.json", "a.json: expected a name that ends in .toml"),
        ("plot placement problem.json v100:0 -o a.txt", "expected a name that ends in .png"),
        ("plot curves a_folder -o a.png", "expected results.json or log.jsonl in it, got neither"),
    ],
)
def test_a_wrong_use_is_one_line_and_leaves_every_file(
    line: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    contents_at_first = contents(folder)
    assert message in fail(*line.split())
    assert contents(folder) == contents_at_first


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Return what is in a folder, compiled modules aside: the bytes of each file."""
    paths = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.read_bytes() if path.is_file() else None for path in paths}
