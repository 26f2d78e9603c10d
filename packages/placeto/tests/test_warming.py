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


def test_placers_and_evaluators_are_warmed_up_before_seconds_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    def noted(name: str, placer: type[Any]) -> None:
        place = placer.place

        def noting(self: Any, *arguments: Any, **options: Any) -> PlacementResult:
            happened.append(f"{name} with seed {options['seed']}")
            found: PlacementResult = place(self, *arguments, **options)
            return found

        monkeypatch.setattr(placer, "place", noting)

    noted("places", SingleDevice)
    noted("searches", MultilevelSearch)
    monkeypatch.setattr(placements, "warm_up", lambda name, _: happened.append(f"warms {name}"))
    monkeypatch.setattr(placements, "warm_up_evaluator", lambda _: happened.append("warms"))
    run_placer(placer_spec("single"), two_chains(), PlainProgress(None), seed=3)
    assert happened == ["warms single", "places with seed 3"]
    for num_devices in (1, 3):  # of three, a search on a pair comes first
        del happened[:]
        settings = PlaceSettings(max_evaluations=400, seed=5)
        place_problem(two_chains(2, num_devices), settings, PlainProgress(None))
        assert happened == ["warms", *["searches with seed 5"] * (1 if num_devices == 1 else 2)]
