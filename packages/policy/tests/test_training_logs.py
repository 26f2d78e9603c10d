import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from placeto_policy import JsonLinesLog, PolicyError, Settings, TensorBoardLog, Trainer
from scheduled_problems import ListSchedule, train, two_chains


def new_trainer(updates: int = 3) -> Trainer:
    settings = Settings(updates=updates, reward="intermediate", device_features="loads")
    return Trainer([ListSchedule(two_chains())], settings)


def test_json_lines_hold_what_each_update_did(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log, summaries = JsonLinesLog(path), train(new_trainer())
    for summary in summaries:
        log.write(summary)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [asdict(summary) for summary in summaries]
    assert [line["evaluations"] for line in lines] == [48, 96, 144 + 6]  # a validation in the last
    assert all(line["best_runtime"] <= line["runtime"] for line in lines)
    assert all(0 < line["entropy"] <= 0.6932 for line in lines)


def test_a_resumed_log_drops_what_the_resumed_training_does_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = JsonLinesLog(path)
    for summary in train(new_trainer()):
        log.write(summary)
    with path.open("a") as file:
        file.write('{"update": 4, "runt')  # the process was killed here
    JsonLinesLog(path, updates=2)
    assert [json.loads(line)["update"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_file_that_is_no_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n")
    with pytest.raises(PolicyError, match="expected a log of updates, got 'remember the milk"):
        JsonLinesLog(path)
    assert path.read_text() == "remember the milk\n"


def test_tensorboard_shows_the_same_numbers(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path) as log:
        summaries = train(new_trainer())
        for summary in summaries:
            log.write(summary)
    curves = EventAccumulator(str(tmp_path))
    curves.Reload()
    assert set(curves.Tags()["scalars"]) == set(asdict(summaries[0])) - {"update"}
    for name in ("runtime", "entropy", "gradient_norm", "learning_rate"):
        shown = {event.step: event.value for event in curves.Scalars(name)}
        expected = {summary.update: getattr(summary, name) for summary in summaries}
        assert shown == pytest.approx(expected, rel=1e-6)
