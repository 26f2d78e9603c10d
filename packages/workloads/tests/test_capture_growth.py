"""The benchmark of growing models: its models, and the table that it prints."""

import pytest

from placeto_workloads import capture_growth, capture_step


@pytest.mark.parametrize(("model", "ops_per_layer"), [("chain", 12), ("recurrence", 8)])
def test_a_model_grows_by_the_same_ops_with_each_layer(model: str, ops_per_layer: int) -> None:
    sizes = [capture_step(capture_growth.MODELS[model](layers)).num_ops for layers in (2, 3, 4)]
    assert [sizes[1] - sizes[0], sizes[2] - sizes[1]] == [ops_per_layer, ops_per_layer]


@pytest.mark.slow
def test_the_benchmark_has_a_row_for_every_size() -> None:
    report = capture_growth.measured(["--models", "chain", "recurrence", "--layers", "2", "3"])
    expected = [("chain", 2), ("chain", 3), ("recurrence", 2), ("recurrence", 3)]
    assert [(capture.model, capture.size) for capture in report.captures] == expected
    assert all(capture.seconds > 0 for capture in report.captures)
    rows = [line.split("|")[1:3] for line in report.markdown().splitlines()][4:]
    assert [(model.strip(), int(layers)) for model, layers in rows] == expected
