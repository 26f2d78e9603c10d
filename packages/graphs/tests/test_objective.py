import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto_graphs import EvaluationBatch, GraphError, memory_penalised_runtime

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


def test_infinity_is_no_limit() -> None:
    batch = EvaluationBatch(runtime=np.array([1.0, 2.0]), peak_memory=np.array([[30, 12], [9, 9]]))
    assert memory_penalised_runtime(batch, np.inf).tolist() == [1.0, 2.0]
    assert memory_penalised_runtime(batch, np.array(np.inf)).tolist() == [1.0, 2.0]
    assert memory_penalised_runtime(batch, [np.inf, 10], scale=1.0).tolist() == [3.0, 2.0]


def test_large_whole_limits_are_not_rounded() -> None:
    batch = EvaluationBatch(runtime=np.array([0.0]), peak_memory=np.array([[2**53 + 1]]))
    assert memory_penalised_runtime(batch, 2**53, scale=1.0).tolist() == [1.0]
    assert memory_penalised_runtime(batch, np.array([2**53 + 1]), scale=1.0).tolist() == [0.0]


@pytest.mark.parametrize(
    ("limit", "scale", "message"),
    [
        (-1, 1.0, "limit: expected a number >= 0, or infinity (no limit), got -1.0"),
        (np.nan, 1.0, "limit: expected a number >= 0, or infinity (no limit), got nan"),
        ([10, np.nan], 1.0, "limit[1]: expected a number >= 0, or infinity (no limit), got nan"),
        ([-np.inf, 1], 1.0, "limit[0]: expected a number >= 0, or infinity (no limit), got -inf"),
        (True, 1.0, "limit: expected numbers, got booleans"),
        ([True, False], 1.0, "limit: expected numbers, got booleans"),
        ("10", 1.0, "limit: expected numbers, got text"),
        (None, 1.0, "limit: expected "),
        (10**30, 1.0, "limit: expected numbers, got mixed objects"),
        ([40, 10, 10], 1.0, "limit: expected shape (2,), got (3,)"),
        ([[1, 2]], 1.0, "limit: expected shape (2,), got (1, 2)"),
        ([[1], [2, 3]], 1.0, "limit: expected an array of one shape"),
        (10, np.nan, "scale: expected a finite number >= 0, got nan"),
        (10, np.inf, "scale: expected a finite number >= 0, got inf"),
        (10, -2.0, "scale: expected a finite number >= 0, got -2.0"),
        (10, True, "scale: expected numbers, got booleans"),
        (10, "2", "scale: expected numbers, got text"),
        (10, [1.0, 2.0], "scale: expected shape (), got (2,)"),
    ],
)
def test_a_wrong_limit_or_scale_is_named(limit: Any, scale: Any, message: str) -> None:
    batch = EvaluationBatch(runtime=np.array([1.0]), peak_memory=np.array([[30, 12]]))
    with pytest.raises(GraphError, match=re.escape(message)) as caught:
        memory_penalised_runtime(batch, limit, scale)
    assert "\n" not in str(caught.value)
