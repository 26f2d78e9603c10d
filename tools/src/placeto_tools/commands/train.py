"""``placeto train``."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from torch.distributed.elastic.multiprocessing.errors import record

from placeto.errors import InputError, LostRunError, RunError, StoppedRunError
from placeto.problems.making import read_to_train_on
from placeto.problems.options import GRANULARITIES_OF_MANY, ProblemOptions
from placeto.progress import Progress, left_text
from placeto.stopping import StopRequest
from placeto.texts import counted, seconds_text
from placeto.training.local_workers import (
    Machines,
    is_first_of_its_machine,
    run_workers,
    worker_rank,
)
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
from placeto_policy.workers import LostProcessError
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

MOST_RESTARTS = 3  # on several machines, from one checkpoint
RESTARTS_VARIABLE = "PLACETO_RESTARTS"  # of the command that runs anew: checkpoint, and how often
FIXED = (
    "--resume: excludes PROBLEMS, their options, -o, --force, --from, --updates, --hparam, "
    "--preset, --granularities and --seed, which the folder has"
)


class HostAndPort(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``."""

    name = "host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return the host and the port."""
        host, _, port = str(value).rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 2**16):
            self.fail(f"expected HOST:PORT, got {value!r}", param, ctx)
        return host, int(port)


@click.command(cls=Command)
@click.argument("problems", nargs=-1, metavar="PROBLEM...")
@output_option(
    "Folder to write: a new one, or that of this training to resume.  [required]", required=False
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    hidden=True,  # the way of the processes that --workers starts
)
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
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of processes on this machine that train together.",
)
@click.option(
    "--machines",
    "count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of machines that train together.",
)
@click.option(
    "--rendezvous",
    type=HostAndPort(),
    help="Machine that has the folder, and a free port of it, such as HOST:29500.  [default: none]",
)
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
    output: Path | None,
    resume: Path | None,
    first: str | None,
    updates: int | None,
    settings: tuple[tuple[str, str], ...],
    preset_name: str | None,
    granularities: int | None,
    seed: int,
    workers: int,
    count: int,
    rendezvous: tuple[str, int] | None,
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
    placeto train nmt:0 nmt:1 nmt:2 nmt:3 -o run --workers 2
    placeto train problem.json.gz --from pretrained --updates 20 -o run

    On several machines, run this on each; HOST reads the problems and has the folder:

    \b
    placeto train problem.json.gz -o run --workers 4 --machines 2 --rendezvous HOST:29500
    """
    if resume:
        given = (problems, output, first, updates, settings, preset_name, granularities, seed)
        if any(given) or force or not asked.says_nothing:
            raise InputError(FIXED)
    elif not problems or not output:
        raise InputError("train: needs PROBLEMS and -o FOLDER")
    if (count > 1) != (rendezvous is not None):
        raise InputError("--machines, --rendezvous: each needs the other")
    if rendezvous and force:
        raise InputError("--force: excludes --machines, which may restart a training")
    folder = RunFolder(resume or output or Path())

    def prepare() -> None:
        """Make or check the folder, before anything is done."""
        if resume:
            found, values, _ = folder.read()
            _check(found, restored_settings(values), workers * count)
            return
        policy = _first_policy(first) if first else None
        chosen = parse_settings(
            settings, updates, preset_name or ("fine-tuning" if policy else None)
        )
        if policy:
            chosen = with_network_of(policy, chosen, settings)
        alone = len(problems) == 1 or preset_name == "paper"
        usual = 1 if alone else GRANULARITIES_OF_MANY
        read = read_to_train_on(problems, granularities or usual, asked)
        _check(read, chosen, workers * count)
        if policy:
            _check_devices(read, policy)
        described = (read, asdict(chosen), seed)
        if force or not folder.has(*described, policy):
            over = force or folder.is_half_made
            folder.create(*described, force=over, first_policy=policy)

    if rendezvous and worker_rank() is None:
        sys.exit(_run_on_machines(workers, Machines(count, *rendezvous), folder))
    if workers > 1 and worker_rank() is None:
        prepare()
        command = [sys.executable, "-m", "placeto_tools", "train"]
        command += ["--resume", str(folder.path), "--checkpoint-every", str(checkpoint_every)]
        sys.exit(run_workers([*command, "--json"] if as_json else command, workers))
    # Under a launcher, a worker that fails leaves word for it.
    run = _train if worker_rank() is None else record(_train)
    run(folder, prepare, checkpoint_every, as_json)


def _first_policy(text: str) -> PlacementPolicy:
    """Return the policy that a training begins with."""
    return load_pretrained() if text == "pretrained" else read_policy(Path(text))


def _run_on_machines(workers: int, machines: Machines, folder: RunFolder) -> int:
    """Run this command in processes of this machine, once more if a process is lost.

    The first machine, which has the checkpoints, ends after too many runs without a new one; the
    others then wait for it in vain.
    """
    command = [sys.executable, "-m", "placeto_tools", *sys.argv[1:]]
    click.echo(f"waiting for {machines}", err=True)
    machines.wait()
    try:
        return run_workers(command, workers, machines)
    except LostRunError as error:
        if machines.is_host():
            _count_restart(folder, error)
        click.echo(f"{error}; resuming from the last checkpoint", err=True)
        time.sleep(1)
        os.execv(command[0], command)  # noqa: S606 (this command, anew: the port is free again)


def _count_restart(folder: RunFolder, error: LostRunError) -> None:
    """Raise the error if there were too many restarts since the last checkpoint."""
    found = folder.checkpoint
    checkpoint = str(found.stat().st_mtime_ns if found.exists() else 0)
    before, _, restarts = os.environ.get(RESTARTS_VARIABLE, ":0").partition(":")
    number = int(restarts) + 1 if before == checkpoint else 1
    if number > MOST_RESTARTS:
        raise RunError(f"{error}; {MOST_RESTARTS} restarts came to no new checkpoint") from error
    os.environ[RESTARTS_VARIABLE] = f"{checkpoint}:{number}"


def _train(
    folder: RunFolder, prepare: Callable[[], None], checkpoint_every: int, as_json: bool
) -> None:
    try:
        with (
            TemporaryDirectory() as copies,
            StopRequest() as stop,
            showing_progress(quiet=bool(worker_rank())) as progress,
            join_processes() as processes,
        ):
            if not processes.rank:
                prepare()
            folder = folder.as_on_first_machine(processes, Path(copies))
            problems, values, seed = folder.read()
            evaluators = [Simulator(problem) for problem in problems.values()]
            if folder.checkpoint.exists():
                trainer = resume_training(folder.checkpoint, evaluators, processes=processes)
            else:
                policy = load_policy(folder.first_policy) if folder.first_policy.exists() else None
                settings = restored_settings(values)
                trainer = Trainer(
                    evaluators, settings, seed=seed, policy=policy, processes=processes
                )
            progress.update("first update (compiles the simulator once) ...")
            done = run_training(
                trainer,
                folder,
                stop,
                updates_between_checkpoints=checkpoint_every,
                report=_Reporter(trainer, progress).report,
            )
    except LostProcessError as error:
        raise LostRunError(str(error)) from error
    stopped = StoppedRunError(
        f"stopped after update {trainer.updates} of {trainer.settings.updates}; the same "
        "command resumes it"
    )
    if processes.rank:
        if not done and is_first_of_its_machine():
            raise stopped  # or its launcher would take the training for done
        return
    best = [found.placement if found else None for found in trainer.best]
    placements = folder.save_placements(list(problems.values()), best)
    if as_json:
        show_json(_summary(folder, trainer, list(problems), placements))
    if not done:
        raise stopped
    if not as_json:
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


def _check(problems: Mapping[str, PlacementProblem], settings: Settings, workers: int) -> None:
    """Refuse what no training can begin with, before anything is written."""
    if workers > settings.workers:
        raise InputError(
            f"--workers: expected at most {settings.workers} in all, the episodes of an update, "
            f"got {workers}"
        )
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
