"""``placeto models``."""

from typing import Any

import click

from placeto.errors import InputError
from placeto.texts import TextTable
from placeto_experiments.model_check.checked_models import CHECKED_MODELS
from placeto_experiments.model_check.model_table import check_models, model_table, success_line
from placeto_tools.options import Command, json_option
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show, show_json
from placeto_workloads import MODELS, family, family_names

SEARCH_SECONDS = 10.0
MEMORY_LIMIT = 12e9  # bytes


@click.command(cls=Command)
@click.option(
    "--check",
    is_flag=True,
    help="Capture and place about ninety models of other libraries, and print a table of them.",
)
@click.option(
    "--only",
    metavar="TEXT",
    multiple=True,
    help="With --check: only models whose names have this in them; may be repeated.",
)
@click.option(
    "--time-limit",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="With --check: of each model.",
)
@json_option
def models(check: bool, only: tuple[str, ...], time_limit: int, as_json: bool) -> None:
    """List the registered models and the families of graphs, with their sizes.

    With --check, capture and place models of timm, torchvision, transformers and diffusers, each in
    a process of its own, and print what came of it (docs/models.md).

    \b
    placeto models
    placeto models --json
    placeto models --check > table.md
    """
    if check:
        _check(only, time_limit, as_json)
        return
    if only:
        raise InputError("--only: expected --check beside it")
    registered: list[dict[str, Any]] = [
        {"name": model.name, "description": model.description, "sizes": dict(model.sizes)}
        for model in MODELS.values()
    ]
    families: list[dict[str, Any]] = []
    for name in family_names():
        chosen = family(name)
        members = [*chosen.training, *chosen.test]
        sizes = {
            size: sorted({member.sizes[size] for member in members}) for size in members[0].sizes
        }
        families.append(
            {
                "name": name,
                "members": len(members),
                "groups": chosen.num_groups,
                "training": [_number(member.name) for member in chosen.training],
                "test": [_number(member.name) for member in chosen.test],
                "sizes": {size: [values[0], values[-1]] for size, values in sizes.items()},
            }
        )
    if as_json:
        show_json({"models": registered, "families": families})
        return
    show(
        TextTable(
            "Models: placeto build NAME",
            ["name", "what it is", "sizes: --set NAME=VALUE"],
            [[m["name"], m["description"], _sizes(m["sizes"])] for m in registered],
        ),
        TextTable(
            "Families: placeto build NAME:NUMBER",
            ["name", ">members", ">groups", "for test (the others for training)", "sizes"],
            [
                [
                    f["name"],
                    str(f["members"]),
                    str(f["groups"]),
                    " ".join(map(str, f["test"])),
                    _ranges(f["sizes"]),
                ]
                for f in families
            ],
        ),
    )


def _check(only: tuple[str, ...], time_limit: int, as_json: bool) -> None:
    chosen = [
        model for model in CHECKED_MODELS if not only or any(text in model.command for text in only)
    ]
    if not chosen:
        raise InputError(f"--only: expected a part of a name of a model, got {', '.join(only)}")
    with showing_progress() as progress:
        reports = check_models(
            chosen,
            progress,
            search_seconds=SEARCH_SECONDS,
            time_limit=time_limit,
            memory_limit=MEMORY_LIMIT,
        )
    if as_json:
        show_json({"models": reports})
        return
    click.echo(model_table(reports).markdown())
    click.echo(f"\n{success_line(reports)}")


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _ranges(sizes: dict[str, list[int]]) -> str:
    return ", ".join(
        f"{name}={least}" if least == most else f"{name}={least}..{most}"
        for name, (least, most) in sizes.items()
    )
