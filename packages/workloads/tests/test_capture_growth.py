"""The benchmark of growing models: its models, and the table that it prints."""

import pytest

from placeto_workloads import capture_growth
from placeto_workloads import capture_step


@pytest.mark.parametrize(("model", "ops_per_layer"), [("chain", 12), ("recurrence", 8)])
def test_a_model_grows_by_the_same_ops_with_each_layer(model: str, ops_per_layer: int) -> None:
    sizes = [capture_step(capture_growth.MODELS[model](layers)).num_ops for layers in (2, 3, 4)]
    assert [sizes[1] - sizes[0], sizes[2] - sizes[1]] == [ops_per_layer, ops_per_layer]


@pytest.mark.slow
def test_the_benchmark_prints_a_row_for_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    capture_growth.main(["--models", "chain", "recurrence", "--layers", "2", "3"])
    rows = [line.split("|")[1:4] for line in capsys.readouterr().out.splitlines()][4:]
    assert [(model.strip(), int(layers)) for model, layers, _ in rows] == [
        ("chain", 2),
        ("chain", 3),
        ("recurrence", 2),
        ("recurrence", 3),
    ]
