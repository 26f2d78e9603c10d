"""``placeto models``."""

from typing import Any

import click

from placeto_tools.options import Command, json_option
from placeto_tools.screen import show_report, table_of
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
    heads = "name | what it is: description | sizes: --set NAME=VALUE: sizes"
    tests = [" ".join(map(str, row["test"])) for row in families]
    show_report(
        {"models": registered, "families": families},
        table_of("Models: placeto build NAME", map(_with_sizes, registered), heads),
        table_of(
            "Families: placeto build NAME:NUMBER",
            [_with_sizes(row) | {"test": test} for row, test in zip(families, tests, strict=True)],
            "name | >graphs | >groups | for test (the others for training): test | sizes",
        ),
        as_json=as_json,
    )


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _with_sizes(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a text of its sizes, of which a pair is a range."""
    ends = {name: size if isinstance(size, list) else [size] for name, size in row["sizes"].items()}
    texts = (f"{name}={'..'.join(map(str, dict.fromkeys(size)))}" for name, size in ends.items())
    return row | {"sizes": ", ".join(texts)}
