"""``placeto train``."""

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click

from placeto.errors import InputError, StoppedRunError
from placeto.outputs import alone_in
from placeto.problems.making import read_training_problems
from placeto.problems.options import GRANULARITIES_OF_MANY, ProblemOptions
from placeto.progress import StopRequest, left_text
from placeto.texts import counted, seconds_text
from placeto.training.folder import TrainingFolder, read_policy
from placeto.training.loop import logs_of, run_training
from placeto.training.settings import parse_settings, restored_settings, with_network_of
from placeto_graphs import PlacementProblem
from placeto_policy import (
    PlacementPolicy,
    Trainer,
    UpdateSummary,
    join_processes,
    load_policy,
    load_pretrained,
    resume_training,
)
from placeto_simulator import Simulator
from placeto_tools.options import (
    KEY_VALUE,
    Command,
    force_option,
    json_option,
    number_option,
    output_option,
    preset_option,
    seed_option,
)
from placeto_tools.problem_options import problem_options
from placeto_tools.screen import show_json, showing_progress


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
@number_option("--updates", help="Number of updates.  [default: of the preset]")
@click.option(
    "--hparam",
    "settings",
    type=KEY_VALUE,
    multiple=True,
    help="Hyperparameter, such as learning_rate_start=3e-4; may be repeated.",
)
@preset_option
@number_option(
    "--granularities",
    help="Number of levels of each graph: from more and fewer groups the policy learns to "
    f"place other graphs better.  [default: {GRANULARITIES_OF_MANY} for several PROBLEMS, 1 for "
    "one or with --preset paper]",
)
@seed_option
@number_option(
    "--checkpoint-every",
    default=10,
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

    PROBLEMS are problem files, or other MODELs of `placeto build` with its options. They have
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
    folder = TrainingFolder(output)

    def prepare() -> None:
        """Make or check the folder, before anything is done."""
        folder.check(force=force)
        policy = None
        if first:
            policy = load_pretrained() if first == "pretrained" else read_policy(Path(first))
        chosen = parse_settings(
            settings, updates, preset_name or ("fine-tuning" if policy else None)
        )
        if policy:
            chosen = with_network_of(policy, chosen, settings)
        alone = len(problems) == 1 or preset_name == "paper"
        usual = 1 if alone else GRANULARITIES_OF_MANY
        read = read_training_problems(problems, granularities or usual, asked)
        if chosen.embedding != "pairs":
            _check_devices(read, policy)
        described = (read, asdict(chosen), seed, policy)
        held.enter_context(alone_in(output))
        if force or not folder.has(*described):
            folder.create(*described)

    with (
        ExitStack() as held,
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
                evaluators, restored_settings(values), seed=seed, policy=policy, processes=processes
            )
        progress.update("first update (compiles the simulator once) ...")
        first_update, began = trainer.updates, time.monotonic()

        def report(summary: UpdateSummary) -> None:
            total = trainer.settings.updates
            made = summary.update - first_update
            left = left_text(made, total - first_update, time.monotonic() - began)
            progress.update(
                f"update {summary.update} of {total}: runtime {seconds_text(summary.runtime)}, "
                f"best {seconds_text(summary.best_runtime)}, "
                f"{summary.evaluations_per_second:,.0f} evaluations/s{left}"
            )

        with logs_of(folder, trainer) as logs:
            done = run_training(
                trainer,
                folder.checkpoint,
                logs,
                lambda: stop.requested,
                updates_between_checkpoints=checkpoint_every,
                report=report,
            )
    if not processes.rank:
        _show(folder, trainer, found, as_json=as_json, done=done)
    if not done:
        raise StoppedRunError(
            f"stopped after update {trainer.updates} of {trainer.settings.updates}; the same "
            "command resumes it"
        )


def _check_devices(
    problems: Mapping[str, PlacementProblem], policy: PlacementPolicy | None
) -> None:
    """Refuse numbers of devices that the policy is not for, before anything is written."""
    first = next(iter(problems))
    expected = policy.num_devices if policy else problems[first].num_devices
    whose = "the policy of --from is for" if policy else f"{first} has"
    hint = "" if policy else "; --preset general learns for any number"
    for name, problem in problems.items():
        if problem.num_devices != expected:
            raise InputError(
                f"{name}: expected {expected} devices, as {whose}, got {problem.num_devices}{hint}"
            )


def _show(
    folder: TrainingFolder,
    trainer: Trainer,
    problems: Mapping[str, PlacementProblem],
    *,
    as_json: bool,
    done: bool,
) -> None:
    """Write the best placements, and show what the training has found."""
    best = dict(zip(problems, trainer.best, strict=True))
    placements = folder.save_placements(
        list(problems.values()), [found.placement if found else None for found in best.values()]
    )
    if as_json:
        report = {
            "folder": str(folder.path),
            "updates": trainer.updates,
            "of_updates": trainer.settings.updates,
            "evaluations": trainer.evaluations,
            "best": {name: found.cost if found else None for name, found in best.items()},
            "fits": {
                name: found is not None and not found.lacks_memory for name, found in best.items()
            },
            "placements": [str(path) for path in placements],
        }
        show_json(report)
    elif done:
        for name, found in best.items():
            if found:
                lacking = ", out of memory" if found.lacks_memory else ""
                click.echo(f"{name}: best {seconds_text(found.cost)}{lacking}")
        updates = counted(trainer.updates, "update")
        click.echo(f"{folder.path}: {updates}, {counted(trainer.evaluations, 'evaluation')}")
