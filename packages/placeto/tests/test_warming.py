"""What a process does once is done before the seconds of a placer count."""

import subprocess
import sys
from typing import Any

import pytest

from placeto.placing import placements
from placeto.placing.placements import PlaceSettings, place_problem, run_placer
from placeto.placing.placers import placer_spec
from placeto.progress import PlainProgress
from placeto_baselines import MultilevelSearch, SingleDevice
from placeto_graphs import PlacementResult
from placeto_policy.example import two_chains

# Placed by each placer after it was warmed up: nothing may be imported or compiled any more.
PLACE_WARM = """
import sys
from numba.core.event import install_recorder
from placeto_policy.example import two_chains
from placeto_simulator import Simulator
from placeto.placing.placers import make_placer
from placeto.placing.placers import warm_up

problem = two_chains(5, 3)
for name in sys.argv[1:]:
    warm_up(name)
    placer, evaluator = make_placer(name, problem, 400), Simulator(problem)
    before = set(sys.modules)
    with install_recorder("numba:compile") as compiled:
        placer.place(problem, evaluator)
    print(name, sorted(set(sys.modules) - before), len(compiled.buffer))
"""


@pytest.mark.slow
def test_nothing_is_left_to_import_or_compile() -> None:
    names = ["single", "scotch", "metis", "m-sct", "local-search", "multilevel", "rnn", "placeto"]
    command = [sys.executable, "-c", PLACE_WARM, *names]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [f"{name} [] 0" for name in names]


def test_a_placer_is_warmed_up_before_it_places(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Noting(SingleDevice):
        """Notes that it was asked."""

        name = "noting"

        def place(self, *problem: Any, seed: int = 0) -> PlacementResult:
            happened.append(f"places with seed {seed}")
            return super().place(*problem, seed=seed)

    monkeypatch.setattr(
        placements, "warm_up", lambda name, _evaluator: happened.append(f"warms {name}")
    )
    run_placer(placer_spec(Noting()), two_chains(), PlainProgress(None), seed=3)
    assert happened == ["warms noting", "places with seed 3"]


@pytest.mark.parametrize("num_devices", [1, 3])  # of three, a search on a pair comes first
def test_the_evaluator_is_warmed_up_before_the_seconds_of_a_search_count(
    num_devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    place = MultilevelSearch.place
    monkeypatch.setattr(placements, "warm_up_evaluator", lambda _: happened.append("warms"))

    def noted(self: MultilevelSearch, *arguments: Any, **options: Any) -> PlacementResult:
        happened.append("searches")
        return place(self, *arguments, **options)

    monkeypatch.setattr(MultilevelSearch, "place", noted)
    problem = two_chains(2, num_devices)
    place_problem(problem, PlaceSettings(max_evaluations=400), PlainProgress(None))
    assert happened == ["warms", *["searches"] * (1 if num_devices == 1 else 2)]
