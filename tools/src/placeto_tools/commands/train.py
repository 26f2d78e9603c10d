"""``placeto train``."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click

from placeto.errors import InputError, StoppedRunError
from placeto.outputs import alone_in
from placeto.problems.making import read_training_problems
from placeto.problems.options import GRANULARITIES_OF_MANY, ProblemOptions
from placeto.progress import Progress, StopRequest, time_left_text
from placeto.texts import counted, seconds_text
from placeto.training.folder import StoredTraining, TrainingFolder, read_policy
from placeto.training.loop import open_logs, run_training
from placeto.training.settings import parse_settings, restored_settings, with_network_of
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
from placeto_policy.workers import Processes
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

VALIDATION = "--validation"


class TrainCommand(Command):
    """A command whose ``--validation`` takes all values up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        spread: list[str] = []
        is_validation = False
        for argument in args:
            if argument.startswith("-"):
                is_validation = argument == VALIDATION
            elif is_validation and spread[-1] != VALIDATION:
                spread.append(VALIDATION)
            spread.append(argument)
        return super().parse_args(ctx, spread)


@click.command(cls=TrainCommand)
@click.argument("problems", nargs=-1, metavar="PROBLEM...")
@output_option("Folder to write: a new one, or that of this training to resume.")
@click.option(
    "--from",
    "first",
    metavar="POLICY",
    help="Policy to begin with: pretrained (the bundled one), a folder of `placeto train`, or a "
    "policy file. Its network stays as it is, and --preset is fine-tuning by default.  "
    "[default: a new policy]",
)
@click.option(
    VALIDATION,
    multiple=True,
    metavar="PROBLEM...",
    help="Other problems, which the policy does not learn: the one that places them best is kept.  "
    "[default: those of the training]",
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
    help="Number of granularities of each graph: from more and fewer groups the policy learns to "
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
    validation: tuple[str, ...],
    updates: int | None,
    settings: tuple[tuple[str, str], ...],
    preset_name: str | None,
    granularities: int | None,
    seed: int,
    checkpoint_every: int,
    options: ProblemOptions,
    as_json: bool,
    force: bool,
) -> None:
    """Train a policy on one or several problems.

    PROBLEMS are problem files, folders of such, or other MODELs of `placeto build` with its
    options. They have equally many devices, except with --preset general or --from pretrained. By
    default it trains a new policy for the updates of the preset, in one process. It keeps the
    policy that places the PROBLEMS best, or those of --validation.

    The folder gets checkpoints, a log (log.jsonl, and one for TensorBoard), and the best
    placements. `placeto place --policy FOLDER` uses the policy. Ctrl-C stops at a checkpoint after
    the current update. If you interrupt a training, run the same command again to resume; with
    --force it begins anew.

    \b
    placeto train problem.json.gz --updates 200 -o run
    placeto train nmt:0 nmt:1 nmt:2 nmt:3 -o run
    placeto train training/*.json.gz --validation validation/*.json.gz -o run
    placeto train problem.json.gz --from pretrained --updates 20 -o run

    torchrun starts several processes that train together, on one machine or on many:

    \b
    torchrun --nproc-per-node 4 -m placeto_tools train problem.json.gz -o run
    """
    if not problems:
        raise InputError("train: needs PROBLEMS and -o FOLDER")
    folder = TrainingFolder(output)
    with (
        ExitStack() as lock,
        StopRequest() as stop,
        showing_progress(quiet=os.environ.get("RANK", "0") != "0") as progress,
        join_processes() as processes,
    ):
        if not processes.rank:  # makes or checks the folder, before anything is done
            folder.check(force=force)
            policy = _read_first_policy(first) if first else None
            chosen = _chosen_settings(settings, updates, preset_name, policy)
            is_one_graph = len(problems) == 1 or preset_name == "paper"
            default = 1 if is_one_graph else GRANULARITIES_OF_MANY
            training_problems = read_training_problems(problems, granularities or default, options)
            others = _read_validation(validation, training_problems, chosen, options)
            if chosen.embedding != "pairs":
                _check_devices({**training_problems, **others}, policy)
            lock.enter_context(alone_in(output))
            training = StoredTraining(training_problems, asdict(chosen), seed, others)
            if force or not folder.has(training, policy):
                folder.create(training, policy)
        processes.gather([])  # the folder is there
        trainer = _make_trainer(folder, seed, processes)
        progress.update("first update (compiles the simulator once) ...")
        with open_logs(folder, trainer) as logs:
            done = run_training(
                trainer,
                folder.checkpoint,
                logs,
                lambda: stop.requested,
                updates_between_checkpoints=checkpoint_every,
                report=_reporter(trainer, progress),
            )
    if not processes.rank:
        _show(folder, trainer, as_json=as_json, done=done)
    if not done:
        raise StoppedRunError(
            f"stopped after update {trainer.updates} of {trainer.settings.updates}; run the same "
            "command again to resume"
        )


def _read_first_policy(name: str) -> PlacementPolicy:
    return load_pretrained() if name == "pretrained" else read_policy(Path(name))


def _read_validation(
    sources: Sequence[str],
    training_problems: Mapping[str, PlacementProblem],
    settings: Settings,
    options: ProblemOptions,
) -> dict[str, PlacementProblem]:
    """Return the problems of ``--validation``; refuse those of the training, and unused ones."""
    if not sources:
        return {}
    if settings.selection != "best":
        raise InputError(f"{VALIDATION}: needs --hparam selection=best")
    problems = read_training_problems(sources, 1, options)
    for name, problem in problems.items():
        if problem in training_problems.values():
            raise InputError(f"{VALIDATION} {name}: expected other problems than PROBLEMS")
    return problems


def _chosen_settings(
    pairs: Sequence[tuple[str, str]],
    updates: int | None,
    preset_name: str | None,
    policy: PlacementPolicy | None,
) -> Settings:
    """Return the hyperparameters of the options, with the network of the policy of ``--from``."""
    if policy is None:
        return parse_settings(pairs, updates, preset_name)
    settings = parse_settings(pairs, updates, preset_name or "fine-tuning")
    return with_network_of(policy, settings, pairs)


def _make_trainer(folder: TrainingFolder, seed: int, processes: Processes) -> Trainer:
    """Return the trainer of a folder, from its checkpoint if there is one."""
    training = folder.read()
    evaluators = [Simulator(problem) for problem in training.problems.values()]
    validation = [Simulator(problem) for problem in training.validation.values()]
    if folder.checkpoint.exists():
        return resume_training(
            folder.checkpoint, evaluators, processes=processes, validation=validation
        )
    policy = load_policy(folder.first_policy) if folder.first_policy.exists() else None
    settings = restored_settings(training.settings)
    return Trainer(
        evaluators,
        settings,
        seed=seed,
        policy=policy,
        processes=processes,
        validation=validation,
    )


def _reporter(trainer: Trainer, progress: Progress) -> Callable[[UpdateSummary], None]:
    """Return a function that shows the progress after an update."""
    first_update, began = trainer.updates, time.monotonic()
    total = trainer.settings.updates

    def report(summary: UpdateSummary) -> None:
        done = summary.update - first_update
        time_left = time_left_text(done, total - first_update, time.monotonic() - began)
        progress.update(
            f"update {summary.update} of {total}: runtime {seconds_text(summary.runtime)}, "
            f"best {seconds_text(summary.best_runtime)}, "
            f"{summary.evaluations_per_second:,.0f} evaluations/s{time_left}"
        )

    return report


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


def _show(folder: TrainingFolder, trainer: Trainer, *, as_json: bool, done: bool) -> None:
    """Write the best placements, and show what the training has found."""
    problems = folder.read().problems
    best_results = dict(zip(problems, trainer.best, strict=True))
    placements = folder.save_placements(
        list(problems.values()),
        [best.placement if best else None for best in best_results.values()],
    )
    if as_json:
        report = {
            "folder": str(folder.path),
            "updates": trainer.updates,
            "of_updates": trainer.settings.updates,
            "evaluations": trainer.evaluations,
            "best": {name: best.cost if best else None for name, best in best_results.items()},
            "fits": {
                name: best is not None and not best.lacks_memory
                for name, best in best_results.items()
            },
            "placements": [str(path) for path in placements],
        }
        show_json(report)
    elif done:
        for name, best in best_results.items():
            if best:
                lacking = ", out of memory" if best.lacks_memory else ""
                click.echo(f"{name}: best {seconds_text(best.cost)}{lacking}")
        updates = counted(trainer.updates, "update")
        click.echo(f"{folder.path}: {updates}, {counted(trainer.evaluations, 'evaluation')}")
