import pytest

from placeto_policy import PolicyError, Settings, preset


def test_presets_that_there_are_not() -> None:
    with pytest.raises(PolicyError, match=r"preset: expected one of 'default', .*, got ''"):
        preset("")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": "transformer"}, "embedding: expected one of 'pairs', 'message-passing', "),
        (
            {"reward": 3},
            "reward: expected one of 'counterfactual', 'intermediate', 'terminal', got 3",
        ),
        ({"minibatches": 0}, "minibatches: expected an integer >= 1, got 0"),
        ({"clip_ratio": 0.0}, "clip_ratio: expected a finite number > 0, got 0.0"),
        ({"workers": True}, "workers: expected an integer >= 1, got True"),
        ({"learning_rate_end": float("nan")}, "learning_rate_end: expected a finite number >= 0"),
        ({"discount": 1.5}, "discount: expected at most 1, got 1.5"),
    ],
)
def test_values_that_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Settings(**change)  # type: ignore[arg-type]
