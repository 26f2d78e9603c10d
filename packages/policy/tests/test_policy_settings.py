import pytest

from placeto_policy import PolicyError
from placeto_policy import Settings


def test_the_values_of_the_paper() -> None:
    settings = Settings()
    assert (settings.learning_rate_start, settings.learning_rate_end) == (1e-3, 1e-4)
    assert (settings.message_rounds, settings.baseline_window, settings.workers) == (8, 10, 8)
    assert settings.memory_penalty == 2e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": "transformer"}, "embedding: expected one of 'message-passing', "),
        ({"reward": 3}, "reward: expected one of 'intermediate', 'terminal', got 3"),
        ({"updates": 0}, "updates: expected an integer >= 1, got 0"),
        ({"workers": 2.0}, "workers: expected an integer >= 1, got 2.0"),
        ({"workers": True}, "workers: expected an integer >= 1, got True"),
        ({"message_rounds": -1}, "message_rounds: expected an integer >= 0, got -1"),
        ({"learning_rate_start": 0.0}, "learning_rate_start: expected a finite number > 0"),
        ({"learning_rate_end": float("nan")}, "learning_rate_end: expected a finite number >= 0"),
        ({"memory_penalty": "2"}, "memory_penalty: expected a finite number >= 0, got '2'"),
        ({"discount": 1.5}, "discount: expected at most 1, got 1.5"),
    ],
)
def test_values_that_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Settings(**change)  # type: ignore[arg-type]
