"""``placeto train``."""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from placeto.errors import InputError, StoppedRunError
from placeto.problems.making import read_to_train_on
from placeto.problems.options import GRANULARITIES_OF_MANY, ProblemOptions
from placeto.progress import Progress, left_text
from placeto.stopping import StopRequest
from placeto.texts import counted, seconds_text
from placeto.training.run_folder import RunFolder, read_policy
from placeto.training.settings import parse_settings, restored_settings, with_network_of
from placeto.training.training_run import run_training
from placeto_graphs import PlacementProblem
from placeto_policy import (
    PlacementPolicy,
    Settings,
    Trainer,
    UpdateSummary,
    join_processes,
    load_policy,
    load_pretrained,
    resume_training,
)
from placeto_simulator import Simulator
from placeto_tools.options import (
    Command,
    KeyValue,
    force_option,
    json_option,
    output_option,
    preset_option,
    seed_option,
)
from placeto_tools.problem_options import problem_options
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show_json


@click.command(cls=Command)
@click.argument("problems", nargs=-1, metavar="PROBLEM...")
@output_option("Folder to write: a new one, or that of this training to resume.  [required]")
@click.option(
    "--from",
    "first",
    metavar="POLICY",
    help="Policy to begin with: pretrained (the bundled one), a folder of `placeto train`, or a "
    "policy file. Its network stays as it is, and --preset is fine-tuning by default.  "
    "[default: a new policy]",
)
@click.option(
    "--updates", type=click.IntRange(min=1), help="Number of updates.  [default: of the preset]"
)
@click.option(
    "--hparam",
    "settings",
    type=KeyValue(),
    multiple=True,
    help="Hyperparameter, such as learning_rate_start=3e-4; may be repeated.",
)
@preset_option
@click.option(
    "--granularities",
    type=click.IntRange(min=1),
    help="Number of granularities of each graph: from more and fewer groups the policy learns to "
    f"place other graphs better.  [default: {GRANULARITIES_OF_MANY} for several PROBLEMS, 1 for "
    "one or with --preset paper]",
)
@seed_option
@click.option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="UPDATES",
    help="Number of updates between checkpoints: a killed training loses at most so many.",
)
@problem_options
@json_option
@force_option
def train(
    problems: tuple[str, ...],
    output: Path,
    first: str | None,
    updates: int | None,
    settings: tuple[tuple[str, str], ...],
    preset_name: str | None,
    granularities: int | None,
    seed: int,
    checkpoint_every: int,
    asked: ProblemOptions,
    as_json: bool,
    force: bool,
) -> None:
    """Train a policy on one or several problems.

    PROBLEMS are problem files, or other SOURCES of `placeto build` with its options. They have
    equally many devices, except with --preset general or --from pretrained. By default a new policy
    learns with the updates of the preset, in one process.

    The folder gets checkpoints, a log (log.jsonl, and one for TensorBoard), and the best
    placements. `placeto place --policy FOLDER` uses the policy. Ctrl-C stops at a checkpoint after
    the current update. The same command resumes a training that was stopped or killed; with --force
    it begins anew.

    \b
    placeto train problem.json.gz --updates 200 -o run
    placeto train nmt:0 nmt:1 nmt:2 nmt:3 -o run
    placeto train problem.json.gz --from pretrained --updates 20 -o run

    torchrun starts several processes that train together, on one machine or on many:

    \b
    torchrun --nproc-per-node 4 -m placeto_tools train problem.json.gz -o run
    """
    if not problems:
        raise InputError("train: needs PROBLEMS and -o FOLDER")
    folder = RunFolder(output)

    def prepare() -> None:
        """Make or check the folder, before anything is done."""
        policy = _first_policy(first) if first else None
        chosen = parse_settings(
            settings, updates, preset_name or ("fine-tuning" if policy else None)
        )
        if policy:
            chosen = with_network_of(policy, chosen, settings)
        alone = len(problems) == 1 or preset_name == "paper"
        usual = 1 if alone else GRANULARITIES_OF_MANY
        read = read_to_train_on(problems, granularities or usual, asked)
        _check(read, chosen)
        if policy:
            _check_devices(read, policy)
        described = (read, asdict(chosen), seed)
        if force or not folder.has(*described, policy):
            over = force or folder.is_half_made
            folder.create(*described, force=over, first_policy=policy)

    with (
        StopRequest() as stop,
        showing_progress(quiet=os.environ.get("RANK", "0") != "0") as progress,
        join_processes() as processes,
    ):
        if not processes.rank:
            prepare()
        processes.gather([])  # the folder is there
        found, values, _ = folder.read()
        evaluators = [Simulator(problem) for problem in found.values()]
        if folder.checkpoint.exists():
            trainer = resume_training(folder.checkpoint, evaluators, processes=processes)
        else:
            policy = load_policy(folder.first_policy) if folder.first_policy.exists() else None
            trainer = Trainer(
                evaluators,
                restored_settings(values),
                seed=seed,
                policy=policy,
                processes=processes,
            )
        progress.update("first update (compiles the simulator once) ...")
        done = run_training(
            trainer,
            folder,
            stop,
            updates_between_checkpoints=checkpoint_every,
            report=_Reporter(trainer, progress).report,
        )
    if not processes.rank:
        _show(folder, trainer, found, as_json=as_json, done=done)
    if not done:
        raise StoppedRunError(
            f"stopped after update {trainer.updates} of {trainer.settings.updates}; the same "
            "command resumes it"
        )


def _first_policy(text: str) -> PlacementPolicy:
    """Return the policy that a training begins with."""
    return load_pretrained() if text == "pretrained" else read_policy(Path(text))


def _show(
    folder: RunFolder,
    trainer: Trainer,
    problems: Mapping[str, PlacementProblem],
    *,
    as_json: bool,
    done: bool,
) -> None:
    """Write the best placements, and show what the training has found."""
    best = [found.placement if found else None for found in trainer.best]
    placements = folder.save_placements(list(problems.values()), best)
    if as_json:
        show_json(_summary(folder, trainer, list(problems), placements))
    elif done:
        for name, found in zip(problems, trainer.best, strict=True):
            if found:
                lacking = ", out of memory" if found.lacks_memory else ""
                click.echo(f"{name}: best {seconds_text(found.cost)}{lacking}")
        updates = counted(trainer.updates, "update")
        click.echo(f"{folder.path}: {updates}, {counted(trainer.evaluations, 'evaluation')}")


class _Reporter:
    """Shows each update, and how long the others take."""

    def __init__(self, trainer: Trainer, progress: Progress) -> None:
        self._trainer = trainer
        self._progress = progress
        self._first = trainer.updates
        self._began = time.monotonic()

    def report(self, summary: UpdateSummary) -> None:
        total = self._trainer.settings.updates
        passed = time.monotonic() - self._began
        done, all_of_them = summary.update - self._first, total - self._first
        left = left_text(done, all_of_them, passed)
        self._progress.update(
            f"update {summary.update} of {total}: runtime {seconds_text(summary.runtime)}, "
            f"best {seconds_text(summary.best_runtime)}, "
            f"{summary.evaluations_per_second:,.0f} evaluations/s{left}"
        )


def _summary(
    folder: RunFolder, trainer: Trainer, names: list[str], placements: list[Path]
) -> dict[str, Any]:
    return {
        "folder": str(folder.path),
        "updates": trainer.updates,
        "of_updates": trainer.settings.updates,
        "evaluations": trainer.evaluations,
        "best": {
            name: found.cost if found else None
            for name, found in zip(names, trainer.best, strict=True)
        },
        "fits": {
            name: found is not None and not found.lacks_memory
            for name, found in zip(names, trainer.best, strict=True)
        },
        "placements": [str(path) for path in placements],
    }


def _check_devices(problems: Mapping[str, PlacementProblem], policy: PlacementPolicy) -> None:
    for name, problem in problems.items():
        if policy.num_devices not in {None, problem.num_devices}:
            raise InputError(
                f"{name}: expected {policy.num_devices} devices, as the policy of --from is for, "
                f"got {problem.num_devices}"
            )


def _check(problems: Mapping[str, PlacementProblem], settings: Settings) -> None:
    """Refuse what no training can begin with, before anything is written."""
    if settings.embedding == "pairs":
        return
    counts = {name: problem.num_devices for name, problem in problems.items()}
    first = next(iter(counts))
    for name, count in counts.items():
        if count != counts[first]:
            raise InputError(
                f"{name}: expected {counts[first]} devices, as {first} has, got {count}; "
                "--preset general learns for any number"
            )
