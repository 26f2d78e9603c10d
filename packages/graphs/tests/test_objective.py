import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto_graphs import EvaluationBatch
from placeto_graphs import memory_penalised_runtime

GIGABYTE = 10**9


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 40), st.integers(0, 40)), min_size=1),
    st.integers(1, 20),
)
def test_each_gigabyte_above_the_limit_costs_two_seconds(
    placements: list[tuple[float, int, int]], limit: int
) -> None:
    batch = EvaluationBatch(
        runtime=np.array([runtime for runtime, *_ in placements]),
        peak_memory=np.array([peaks for _, *peaks in placements]) * GIGABYTE,
    )
    expected = [
        runtime + 2 * (max(peaks) - limit) if max(peaks) > limit else runtime
        for runtime, *peaks in placements
    ]
    np.testing.assert_allclose(memory_penalised_runtime(batch, limit * GIGABYTE), expected)


def test_devices_may_have_limits_of_their_own() -> None:
    batch = EvaluationBatch(runtime=np.array([1.0]), peak_memory=np.array([[30, 12]]))
    assert memory_penalised_runtime(batch, [40, 10], scale=1.0).tolist() == [3.0]
    with pytest.raises(ValueError, match="limit: expected one, or 2 of them, got"):
        memory_penalised_runtime(batch, [40, 10, 10])
