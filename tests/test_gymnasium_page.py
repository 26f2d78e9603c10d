"""The page on agents of other libraries: what it shows learns to place."""

from pathlib import Path
from typing import Any

from command_runs import blocks

PAGE = Path("packages/policy/README.md")


def test_the_agent_of_the_page_places_better_than_chance_and_than_one_device() -> None:
    (block,) = blocks(PAGE, "py")  # apart from those that need no other library
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102
    first, *_, last = names["curve"]
    # Untrained it chooses at random. The mean of ten placements is known to about 2 ms of 59.
    assert abs(first - names["at_random"]) < 0.15 * names["at_random"]
    assert last < 0.92 * min(names["at_random"], names["on_one_device"])
