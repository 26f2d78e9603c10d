"""The ledger: settings by hand at small sizes, the arithmetic of its tables, and its command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from placeto_experiments.ledger import command
from placeto_experiments.ledger.command import Compared, compared, mean_error, orderings
from placeto_experiments.ledger.entries import Entry, Row, entries, setting_of
from placeto_experiments.ledger.settings import Inference, Training, chain_problem, runtime
from placeto_graphs import Phase, parse_cluster
from placeto_simulator import Simulator

SMALL = {"layers": 2, "width": 16, "heads": 2, "words": 50, "batch": 3, "length": 8}
GAP = pytest.approx  # between ops of a device pass some microseconds


def training(**changes: Any) -> Training:
    setting = setting_of(SMALL | {"mode": "training", "devices": "2xv100"} | changes)
    assert isinstance(setting, Training)
    return setting


def inference(**changes: Any) -> Inference:
    setting = setting_of(SMALL | {"mode": "inference", "devices": "2xv100"} | changes)
    assert isinstance(setting, Inference)
    return setting


def test_parts_go_through_stages_one_after_the_other() -> None:
    # Three parts take 1 s, 0.5 s on the way, and 2 s; the second stage is never idle after 1.5 s.
    cluster = setting_of(
        SMALL | {"mode": "training", "devices": "2xv100", "bandwidth": 4.0, "latency": 0.25}
    ).cluster
    problem = chain_problem(np.tile([1.0, 2.0], (3, 1)), 1, 1, cluster)
    assert runtime(problem) == GAP(1 + 0.5 + 3 * 2, abs=1e-4)


def test_a_word_begins_when_the_one_before_is_made() -> None:
    # One part is in one stage at a time; of three, the slower stage works on one always.
    cluster = parse_cluster("2xv100")
    once, thrice = (chain_problem(np.tile([1.0, 2.0], (m, 1)), 0, 4, cluster) for m in (1, 3))
    assert runtime(once) == GAP(4 * (1 + 2), abs=1e-3)
    assert runtime(thrice) == GAP(1 + 4 * 3 * 2, abs=1e-3)


def test_two_stages_take_as_long_as_one_and_the_way_between() -> None:
    # Three sequences of 8 words of 16 numbers of 4 bytes, at 1,536 bytes per second, and a latency.
    one = inference(devices="1xv100").seconds()
    two = inference(bandwidth=1536.0, latency=0.5).seconds()
    assert two == GAP(one + (1 + 0.5) / 3, abs=1e-5)


def test_parts_of_a_prompt_attend_to_those_before() -> None:
    whole = {"mode": "prompt", "devices": "1xcpu", "prompt": 8, "batch": 1, "length": 1}
    parts = setting_of(SMALL | whole | {"part": 4})
    stages = [inference(devices="1xcpu", batch=1, length=4, past=past) for past in (0, 4)]
    # The second part has more to read, and takes longer by the time of the ops that read it.
    first, second = (stage.seconds_of_stages(stage.model)[0] for stage in stages)
    assert second > first
    assert parts.seconds() == GAP((first + second) / 8, abs=2e-6)


@pytest.mark.parametrize("changes", [{}, {"precision": "mixed-float16", "checkpointing": True}])
def test_layers_hand_their_outputs_and_gradients_to_their_neighbours_alone(
    changes: dict[str, Any],
) -> None:
    setting = training(**changes, layers=3, devices="3xv100", micro_batches=2, dropout=True)
    problem = setting.problem()
    graph, stage = problem.graph, problem.grouping.group_of
    sent = {
        (int(tensor), int(stage[maker]), int(stage[reader]))
        for (tensor, reader), maker in zip(graph.edges, graph.edge_producers, strict=True)
        if stage[maker] != stage[reader]
    }
    # Two micro-batches over two boundaries, forward and backward.
    assert sorted(pair for _, *pair in sent) == 2 * [[0, 1]] + 2 * [[1, 0]] + 2 * [[1, 2]] + [
        *(2 * [[2, 1]])
    ]
    assert {int(graph.tensor_bytes[tensor]) for tensor, *_ in sent} == {3 * 8 * 16 * 4}


@pytest.mark.parametrize("gpipe", [True, False])
def test_the_backward_pass_of_gpipe_begins_after_the_forward_pass(gpipe: bool) -> None:
    problem = training(gpipe=gpipe, micro_batches=3).problem()
    timeline = Simulator(problem).timeline(np.arange(2, dtype=np.int32))
    phases = problem.graph.phases
    end = timeline.op_end[phases == Phase.FORWARD].max()
    assert (timeline.op_start[phases == Phase.BACKWARD].min() >= end) == gpipe


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no field of Training is called .*'head'"):
        training(head=1)
    with pytest.raises(ValueError, match=r"^stages: \(1, 2\) are not 2 layers on 2$"):
        training(stages=[1, 2]).seconds()


def entry(*measured: float) -> Entry:
    changes: list[dict[str, Any]] = [{"devices": "1xv100"}, {}, {"micro_batches": 2}]
    rows = zip(measured, changes, strict=True)
    return Entry("Small", "Part", "nobody", tuple(Row(f"{a} s", a, training(**b)) for a, b in rows))


def test_ratios_are_those_to_the_first_row() -> None:
    rows = compared(entry(2.0, 3.0, 1.0), [0.5, 1.0, 0.2])
    assert [row.measured for row in rows] == [1.0, 1.5, 0.5]
    assert [row.simulated for row in rows] == [1.0, 2.0, 0.4]
    assert [row.error for row in rows] == GAP([0, 1 / 3, -0.2])
    assert mean_error(rows[1:]) == GAP((1 / 3 + 0.2) / 2)


def test_pairs_count_that_differ_by_more_than_a_tenth() -> None:
    measured, simulated = (1.0, 1.05, 1.11, 3.0), (1.0, 2.0, 1.0, 0.5)
    rows = [Compared("", *pair) for pair in zip(measured, simulated, strict=True)]
    # 1 and 1.11 are simulated as equal, and 3 as the least of all.
    assert orderings(rows) == (0, 4)
    assert orderings(rows[:3]) == (0, 1)
    assert orderings([rows[0], rows[3]._replace(simulated=1.5)]) == (1, 1)
    # Two orders of the same ops take as long, but for the last digit.
    assert orderings([rows[0], rows[3]._replace(simulated=1.0 + 2e-16)]) == (0, 1)


def test_the_entries_are_whole() -> None:
    assert len({entry.name for entry in entries()}) == len(entries())
    for one in entries():
        assert len({row.text for row in one.rows}) == len(one.rows) > 1
        assert all(row.measured > 0 and row.setting.cluster.num_devices for row in one.rows)
        assert one.source


def test_the_command_writes_measured_and_simulated_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = entry(2.0, 3.0, 1.0)
    monkeypatch.setattr(command, "entries", lambda: (small,))
    arguments = ["--only", "Small", "-o", str(tmp_path / "ledger")]
    result = CliRunner().invoke(command.run_ledger, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "ledger" / "results.md").read_text()
    seconds = [row.setting.seconds() for row in small.rows]
    rows = compared(small, seconds)
    for row in rows[1:]:
        assert f"| {row.text} | {row.measured:.3f} | {row.simulated:.3f} |" in page
    right, pairs = orderings(rows)
    assert f"| **Small**: 2.0 s | 1 | 1 | orderings {right} of {pairs} |" in page
    assert f"Mean error of 2 ratios: {100 * mean_error(rows[1:]):.1f} %" in page
    refused = CliRunner().invoke(command.run_ledger, ["--only", "large", "-o", str(tmp_path)])
    assert "expected a part of a name of an entry, got large" in str(refused.exception)
