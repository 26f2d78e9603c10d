"""Architecture search as in ENAS: ``python -m placeto_experiments.enas train text --out run``.

``train`` trains shared weights and a controller in turn, and goes on where it was cut; ``rewards``
compares the controller with even draws over several seeds; ``cells`` and ``families`` tell what
changes in cells, and in families, whose architectures come from a training.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from placeto_experiments.enas.cell_table import cell_table
from placeto_experiments.enas.checkpoint import ARCHITECTURES, train
from placeto_experiments.enas.family_table import family_table, member_numbers
from placeto_experiments.enas.images import cifar10, shape_images
from placeto_experiments.enas.reward_table import reward_row, reward_table
from placeto_experiments.enas.search import Search
from placeto_experiments.enas.settings import PUBLISHED, Settings
from placeto_experiments.enas.tasks import ImageTask, Task, TextTask
from placeto_experiments.enas.texts import grammar_text, penn_treebank
from placeto_workloads.errors import WorkloadError
from placeto_workloads.families.controller_sampler import ControllerSampler, shipped_trajectory
from placeto_workloads.families.family import PAPER_FAMILIES, family
from placeto_workloads.families.sampler import ArchitectureSampler, UniformSampler
from placeto_workloads.families.trajectory import load_trajectory

PROGRAM = "placeto_experiments.enas"
# What suits the small data sets of each kind.
SMALL = {
    "images": Settings(rounds=10, shared_rate=0.05, controller_rate=0.01),
    "text": Settings(rounds=20, shared_rate=0.3, controller_rate=0.0035),
}
SPACES = {"images": "convolutional", "text": "recurrent"}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    top = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)
    for name, text in (
        ("train", "train shared weights and the controller in turn"),
        ("rewards", "the controller's reward over even draws"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("data", choices=sorted(SMALL), help="what is learned")
        command.add_argument(
            "--folder",
            type=Path,
            help="of CIFAR-10 (binary version) or ptb.train.txt and ptb.valid.txt; "
            "by default shapes or a small grammar",
        )
        command.add_argument("--out", type=Path, required=True, help="folder that keeps trainings")
        command.add_argument(
            "--published", action="store_true", help="sizes and settings of Pham et al. (2018)"
        )
        _add_settings(command)
        _add_sizes(command)
        if name == "train":
            command.add_argument("--seed", type=int, default=0)
        else:
            command.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    command = commands.add_parser("cells", help="what the cells of trainings are like")
    _add_architectures(command)
    command = commands.add_parser("families", help="what changes in families")
    command.add_argument("names", nargs="+", choices=PAPER_FAMILIES, metavar="FAMILY")
    _add_architectures(command)
    command.add_argument("--members", type=int, default=32, help="of each family, at most 32")
    command.add_argument("--seed", type=int, default=0)
    return top


def _add_architectures(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--architectures",
        type=Path,
        nargs="+",
        default=[],
        help=f"{ARCHITECTURES} of trainings; by default those that come with the package",
    )


def _add_settings(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("settings, by default those that suit the data")
    for setting in fields(Settings):
        if setting.name != "uniform":
            option = f"--{setting.name.replace('_', '-')}"
            group.add_argument(option, type=type(setting.default), dest=setting.name)
    if command.prog.endswith("train"):
        group.add_argument(
            "--uniform", action="store_true", default=None, help="even draws, no controller"
        )


def _add_sizes(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("sizes")
    for name in ("num-nodes", "cells-per-stage", "filters", "units", "steps", "batch-size"):
        group.add_argument(f"--{name}", type=int)


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings that options ask for."""
    data: str = options.data
    settings = PUBLISHED[SPACES[data]] if options.published else SMALL[data]
    given = {
        setting.name: getattr(options, setting.name)
        for setting in fields(Settings)
        if getattr(options, setting.name, None) is not None
    }
    return replace(settings, **given)


def task_maker(options: argparse.Namespace) -> Callable[[int], Task]:
    """Return what makes, from a seed, the task that options ask for."""
    images = options.data == "images"
    others = ("units", "steps") if images else ("cells_per_stage", "filters")
    for name in others:
        if getattr(options, name) is not None:
            raise WorkloadError(f"--{name.replace('_', '-')}: {options.data} have no such size")
    taken = ("cells_per_stage", "filters") if images else ("units", "steps")
    sizes = {
        name: getattr(options, name)
        for name in ("num_nodes", "batch_size", *taken)
        if getattr(options, name) is not None
    }
    if images:
        published = {"cells_per_stage": 2, "filters": 20, "batch_size": 160}
        pictures = cifar10(options.folder) if options.folder else shape_images()
        chosen = {**(published if options.published else {}), **sizes}
        return lambda seed: ImageTask(pictures, seed=seed, **chosen)
    published = {"units": 748, "steps": 35, "batch_size": 64}
    text = penn_treebank(options.folder) if options.folder else grammar_text()
    chosen = {**(published if options.published else {}), **sizes}
    scale = 80.0 if options.published else 1.0
    return lambda seed: TextTask(text, seed=seed, reward_scale=scale, **chosen)


def report(search: Search, mean_reward: float) -> None:
    """Print a line about a round, where progress is shown."""
    print(
        f"round {search.rounds} of {search.settings.rounds}: mean reward {mean_reward:.4f}",
        file=sys.stderr,
        flush=True,
    )


def run_train(options: argparse.Namespace) -> None:
    """Train, and say where the architectures are."""
    make, settings = task_maker(options), settings_of(options)
    search = train(make(options.seed), settings, options.out, seed=options.seed, report=report)
    means = search.trajectory.round_means()
    print(
        f"{len(search.trajectory)} architectures in {options.out / ARCHITECTURES}; mean reward "
        f"{means[0]:.4f} in the first round, {means[-1]:.4f} in the last"
    )


def run_rewards(options: argparse.Namespace) -> None:
    """Print the table of rewards."""
    make, settings = task_maker(options), settings_of(options)
    if options.seeds < 1:
        raise WorkloadError(f"--seeds: expected at least 1, got {options.seeds}")
    rows = [reward_row(make, settings, seed, options.out, report) for seed in range(options.seeds)]
    print(reward_table(rows))


def run_cells(options: argparse.Namespace) -> None:
    """Print a table for each training."""
    trajectories = [load_trajectory(path) for path in options.architectures]
    for trajectory in trajectories or [shipped_trajectory(name) for name in SPACES.values()]:
        if not len(trajectory):
            raise WorkloadError("--architectures: expected architectures, got none")
        print(f"{trajectory.space.name}:\n\n{cell_table(trajectory)}\n")


def run_families(options: argparse.Namespace) -> None:
    """Print the table of families."""
    if options.members < 1:
        raise WorkloadError(f"--members: expected at least 1, got {options.members}")
    samplers: dict[str, ArchitectureSampler] = {
        "even": UniformSampler(),
        "controller": ControllerSampler.load(*options.architectures),
    }
    rows = []
    for name in options.names:
        for source, sampler in samplers.items():
            chosen = family(name, seed=options.seed, sampler=sampler)
            members = [*chosen.training, *chosen.test][: options.members]
            numbers = [member_numbers(member, chosen) for member in members]
            rows.append((f"{name}, {source}", numbers))
    print(family_table(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 after an error, which is one line."""
    options = parser().parse_args(arguments)
    run = {
        "train": run_train,
        "rewards": run_rewards,
        "cells": run_cells,
        "families": run_families,
    }
    try:
        run[options.command](options)
    except (WorkloadError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
