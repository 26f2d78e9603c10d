import pytest

from placeto_workloads import benchmark
from placeto_workloads.registry import model_names


@pytest.mark.slow
def test_the_benchmark_has_a_row_of_every_table_for_every_model() -> None:
    printed = benchmark.measured(["--models", "nmt-2"]).markdown()
    lines = [line for line in printed.splitlines() if line.startswith("| n")]
    assert [line.split("|")[1].strip() for line in lines] == ["nmt-2"] * 4


def test_the_benchmark_knows_what_was_published_of_each_model() -> None:
    assert set(benchmark.TENSORFLOW_OPS) == set(model_names())
