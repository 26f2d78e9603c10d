"""Architecture search as in ENAS: ``python -m enas train text --out run``, in the folder lab.

``train`` trains shared weights and a controller in turn, and resumes where it was cut; ``rewards``
compares the controller with uniform sampling over several seeds.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from enas.data import cifar10, grammar_text, penn_treebank, shape_images
from enas.search import ARCHITECTURES, PUBLISHED, Search, Settings, round_means, train
from enas.tasks import ImageTask, Task, TextTask
from placeto.texts import TextTable
from placeto_workloads import WorkloadError

SPACES = {"images": "convolutional", "text": "recurrent"}
# Settings that suit the small data sets.
SMALL = {
    "images": Settings(rounds=10, shared_rate=0.05, controller_rate=0.01),
    "text": Settings(rounds=20, shared_rate=0.3, controller_rate=0.0035),
}
# The sizes of a task that are options, with those of Pham et al. (2018).
PUBLISHED_SIZES: dict[str, dict[str, int | None]] = {
    "images": {"num_nodes": None, "cells_per_stage": 2, "filters": 20, "batch_size": 160},
    "text": {"num_nodes": None, "units": 748, "steps": 35, "batch_size": 64},
}
SIZES = ("num_nodes", "cells_per_stage", "filters", "units", "steps", "batch_size")
NUM_ARCHITECTURES, NUM_BATCHES = 50, 4  # of a mean reward after the training


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    top = argparse.ArgumentParser(prog="enas", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for name, text in (
        ("train", "train shared weights and the controller in turn"),
        ("rewards", "compare the controller with uniform sampling"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("data", choices=sorted(SMALL), help="kind of data")
        command.add_argument(
            "--folder",
            type=Path,
            help="folder of CIFAR-10 (binary version) or ptb.train.txt and ptb.valid.txt; "
            "by default shapes or a small grammar",
        )
        command.add_argument("--out", type=Path, required=True, help="folder of the trainings")
        command.add_argument(
            "--published", action="store_true", help="sizes and settings of Pham et al. (2018)"
        )
        for each in fields(Settings):
            if each.name != "uniform":
                command.add_argument(_option(each.name), type=type(each.default))
        for size in SIZES:
            command.add_argument(_option(size), type=int)
        if name == "train":
            command.add_argument("--seed", type=int, default=0)
            command.add_argument(
                "--uniform", action="store_true", default=None, help="no controller"
            )
        else:
            command.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0")
    return top


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _settings(options: argparse.Namespace) -> Settings:
    settings = PUBLISHED[SPACES[options.data]] if options.published else SMALL[options.data]
    given = {each.name: getattr(options, each.name, None) for each in fields(Settings)}
    return replace(settings, **{name: value for name, value in given.items() if value is not None})


def _task_maker(options: argparse.Namespace) -> Callable[[int], Task]:
    """Return a function from a seed to the task that the options describe."""
    published = PUBLISHED_SIZES[options.data]
    sizes = {name: size for name, size in published.items() if size and options.published}
    for name in SIZES:
        given = getattr(options, name)
        if given is not None and name not in published:
            raise WorkloadError(f"{_option(name)}: {options.data} have no such size")
        if given is not None:
            sizes[name] = given
    if options.data == "images":
        images = cifar10(options.folder) if options.folder else shape_images()
        return lambda seed: ImageTask(images, seed=seed, **sizes)
    text = penn_treebank(options.folder) if options.folder else grammar_text()
    scale = 80.0 if options.published else 1.0
    return lambda seed: TextTask(text, seed=seed, reward_scale=scale, **sizes)


def _report(search: Search, mean_reward: float) -> None:
    line = f"round {search.rounds} of {search.settings.rounds}: mean reward {mean_reward:.4f}"
    print(line, file=sys.stderr, flush=True)


def _train(options: argparse.Namespace) -> None:
    make, settings = _task_maker(options), _settings(options)
    search = train(make(options.seed), settings, options.out, seed=options.seed, report=_report)
    means = round_means(search)
    print(
        f"{len(search.evaluated)} architectures in {options.out / ARCHITECTURES}; mean reward "
        f"{means[0]:.4f} in the first round, {means[-1]:.4f} in the last"
    )


def _rewards(options: argparse.Namespace) -> None:
    """Print the mean rewards of each seed: of its training, and of architectures after it."""
    make, settings = _task_maker(options), _settings(options)
    rows = [_reward_row(make, settings, seed, options.out) for seed in range(options.seeds)]
    gains = [row[-1] for row in rows]
    lines = [[str(seed), *(f"{reward:.3f}" for reward in row)] for seed, row in enumerate(rows)]
    lines.append(["mean", *(f"{fmean(column):.3f}" for column in zip(*rows, strict=True))])
    if len(gains) > 1:
        lines[-1][-1] += f" ± {stdev(gains):.3f}"
    columns = ["first round", "last round", "controller", "uniform, same weights"]
    columns += ["uniform, own weights", "gain"]
    print(TextTable("", ["seed", *(f">{name}" for name in columns)], lines).markdown())


def _reward_row(
    make: Callable[[int], Task], settings: Settings, seed: int, folder: Path
) -> list[float]:
    def trained(name: str, settings: Settings) -> Search:
        return train(make(seed), settings, folder / f"{name}-{seed}", seed=seed, report=_report)

    controlled = trained("controller", settings)
    uniform = trained("uniform", replace(settings, uniform=True))
    space, generator = controlled.task.space, np.random.default_rng(seed)
    chosen = [
        space.architecture(row.tolist()) for row in controlled.sample(NUM_ARCHITECTURES, generator)
    ]
    drawn = [space.uniform(generator) for _ in range(NUM_ARCHITECTURES)]
    means = round_means(controlled)
    own, same, others = (
        float(search.evaluate(architectures, NUM_BATCHES).mean())
        for search, architectures in ((controlled, chosen), (controlled, drawn), (uniform, drawn))
    )
    return [means[0], means[-1], own, same, others, own - max(same, others)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = parser().parse_args(arguments)
    (_train if options.command == "train" else _rewards)(options)


if __name__ == "__main__":
    main()
