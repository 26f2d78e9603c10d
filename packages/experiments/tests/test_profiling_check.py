"""The check that the times of single ops add up."""

import pytest
import torch
from torch import nn

from placeto_experiments.costs import profiling_check


def test_the_check_prints_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        profiling_check.MODELS, "perceptron", lambda: (nn.Linear(4, 3), torch.ones(2, 4))
    )
    monkeypatch.setattr(profiling_check, "TOLERANCE", float("inf"))
    assert profiling_check.main(["--models", "perceptron", "--rounds", "1", "--repeats", "1"]) == 0
    assert "| perceptron | 8 |" in capsys.readouterr().out
    monkeypatch.setattr(profiling_check, "TOLERANCE", -1.0)
    assert profiling_check.main(["--models", "perceptron", "--rounds", "1", "--repeats", "1"]) == 1
