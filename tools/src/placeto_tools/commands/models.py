"""``placeto models``."""

from typing import Any

import click

from placeto.texts import TextTable
from placeto_tools.options import Command, json_option
from placeto_tools.tables import show, show_json
from placeto_workloads import MODELS, family, family_names


@click.command(cls=Command)
@json_option
def models(as_json: bool) -> None:
    """List the registered models and families of graphs.

    \b
    placeto models
    placeto models --json
    """
    registered: list[dict[str, Any]] = [
        {"name": model.name, "description": model.description, "sizes": dict(model.sizes)}
        for model in MODELS.values()
    ]
    families: list[dict[str, Any]] = []
    for name in family_names():
        chosen = family(name)
        graphs = [*chosen.training, *chosen.test]
        sizes = {size: sorted({graph.sizes[size] for graph in graphs}) for size in graphs[0].sizes}
        families.append(
            {
                "name": name,
                "graphs": len(graphs),
                "groups": chosen.num_groups,
                "training": [_number(graph.name) for graph in chosen.training],
                "test": [_number(graph.name) for graph in chosen.test],
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
            ["name", ">graphs", ">groups", "for test (the others for training)", "sizes"],
            [
                [
                    f["name"],
                    str(f["graphs"]),
                    str(f["groups"]),
                    " ".join(map(str, f["test"])),
                    _ranges(f["sizes"]),
                ]
                for f in families
            ],
        ),
    )


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _ranges(sizes: dict[str, list[int]]) -> str:
    return ", ".join(
        f"{name}={least}" if least == most else f"{name}={least}..{most}"
        for name, (least, most) in sizes.items()
    )
