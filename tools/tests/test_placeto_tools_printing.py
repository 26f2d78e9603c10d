import json
import time

import pytest

from placeto.errors import one_line
from placeto.placing.placers import expert_scopes
from placeto.texts import TextTable
from placeto_tools import screen
from placeto_tools.screen import show, show_json

HOSTILE = "a\x1b[31m|b\n[bold]"


def test_a_table_of_hostile_names_controls_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show(TextTable(HOSTILE, ["name", ">bytes"], [[HOSTILE, "1"], ["x" * 300, "22"]]))
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert r"a\x1b[31m|b\n[bold]" in printed
    assert "x" * 300 in printed
    assert len({len(line) for line in printed.splitlines()[1:]}) == 1


def test_markdown_keeps_its_columns() -> None:
    table = TextTable("Title", ["name", ">bytes"], [["a", "1"], ["b", "2"]])
    expected = ["Title", "", "| name | bytes |", "| --- | ---: |", "| a | 1 |", "| b | 2 |"]
    assert table.markdown().splitlines() == expected
    assert TextTable("", ["name"], [["a|b\n"]]).markdown().splitlines()[-1] == r"| a\|b\n |"


def test_json_has_no_numbers_that_json_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"µ": 1.5, "infinite": float("inf"), "unknown": [float("nan")]})
    text = capsys.readouterr().out
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text) == {"µ": 1.5, "infinite": None, "unknown": [None]}


def test_an_error_of_many_lines_is_one_line() -> None:
    assert one_line(RuntimeError("a\nb\x1b")) == r"RuntimeError: a b\x1b (--debug shows where)"
    assert one_line(KeyboardInterrupt()) == "stopped"


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        (["network.modules_35x35.0.point", "network.modules_35x35.0.five.0", "loss"], [0, 1, -1]),
        (["network.cells.cell3.blocks.block0.left", "network.cells.cell3.blocks.block4"], [0, 1]),
        (["encoder.layer0.step1", "decoder.layer1.step1", "softmax.step1"], [0, 1, 1]),
    ],
)
def test_an_expert_reads_the_scopes_of_the_registered_models(
    scopes: list[str], expected: list[int]
) -> None:
    expert = expert_scopes(scopes)
    assert expert is not None
    assert expert.devices(scopes, 2).tolist() == expected


def test_an_expert_reads_nothing_in_other_scopes() -> None:
    assert expert_scopes(["", "transformer.h.0"]) is None


@pytest.mark.parametrize("takes_long", [False, True])
def test_where_no_terminal_is_a_line_tells_what_takes_long(
    takes_long: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "SECONDS_UNTIL_FIRST_LINE", 0.01 if takes_long else 60.0)
    with screen.showing_progress("a.onnx"):
        until = time.monotonic() + 10.0
        printed = ""
        while takes_long and not printed and time.monotonic() < until:
            time.sleep(0.01)
            printed = capsys.readouterr().err
    line = "a.onnx: reading or capturing its graph ...\n"
    assert printed + capsys.readouterr().err == (line if takes_long else "")
