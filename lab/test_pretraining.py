"""The whole way at the smallest scale: search, imitation, reinforcement, table."""

from itertools import islice
from pathlib import Path

import pytest

from placeto_policy import load_policy
from pretraining import __main__ as pretraining
from pretraining.searched import training_problems


def test_a_policy_is_searched_for_trained_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = list(islice(training_problems(1, 1), 2))
    monkeypatch.setattr(pretraining, "training_problems", lambda *_: few)
    folder = str(tmp_path)
    for part, limit in (("training", "2"), ("validation", "1")):
        search = ["search", folder, "--part", part, "--limit", limit, "--evaluations", "40"]
        pretraining.main(search)
    for kept, command in (("imitated", "imitate"), ("policy", "reinforce")):
        pretraining.main([command, folder, "--steps", "2"])
        assert load_policy(tmp_path / f"{kept}.safetensors").num_devices is None
    capsys.readouterr()
    pretraining.main(["imitate", folder, "--steps", "2"])
    assert not capsys.readouterr().out  # it is at its end
    policy = str(tmp_path / "policy.safetensors")
    pretraining.main(["evaluate", folder, "--part", "validation", "--policy", policy])
    _, _, row, *_ = capsys.readouterr().out.splitlines()
    greedy, some, rounds, placed, *others = (float(cell) for cell in row.split("|")[5:12])
    assert min(greedy, some, rounds, placed, *others) >= 1.0  # of the best that is known
    assert greedy >= some >= rounds
    assert placed <= min(others[:2])  # the schedulers are among its starts
