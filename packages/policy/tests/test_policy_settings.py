import pytest

from placeto_policy import PolicyError, Settings, preset


def test_the_preset_of_the_paper_is_its_method() -> None:
    paper = preset("paper")
    assert (paper.learning_rate_start, paper.learning_rate_end) == (1e-3, 1e-4)
    assert (paper.message_rounds, paper.baseline_window, paper.workers) == (8, 10, 8)
    assert paper.memory_penalty == 2e-9
    assert (paper.embedding, paper.messages) == ("message-passing", "residual")
    assert (paper.node_features, paper.device_features) == ("costs", "none")
    assert (paper.reward, paper.discount, paper.advantage_scale) == ("intermediate", 1.0, "none")
    assert (paper.minibatches, paper.epochs) == (1, 1)
    assert paper.entropy_weight_end < paper.entropy_weight_start


@pytest.mark.parametrize("name", ["Paper", "", "fast"])
def test_presets_that_there_are_not(name: str) -> None:
    with pytest.raises(
        PolicyError, match=f"preset: expected one of 'default', .*'paper', got '{name}'"
    ):
        preset(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": "transformer"}, "embedding: expected one of 'pairs', 'message-passing', "),
        (
            {"reward": 3},
            "reward: expected one of 'counterfactual', 'intermediate', 'terminal', got 3",
        ),
        ({"messages": "loud"}, "messages: expected one of 'plain', 'residual', got 'loud'"),
        ({"node_features": "all"}, "node_features: expected one of 'costs', 'costs-and-times', "),
        (
            {"device_features": None},
            "device_features: expected one of 'none', 'loads', 'loads-and-lookahead', got None",
        ),
        ({"advantage_scale": "rms"}, "advantage_scale: expected one of 'none', 'spread', got"),
        ({"minibatches": 0}, "minibatches: expected an integer >= 1, got 0"),
        ({"epochs": 0}, "epochs: expected an integer >= 1, got 0"),
        ({"clip_ratio": 0.0}, "clip_ratio: expected a finite number > 0, got 0.0"),
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
