"""``placeto experiment``."""

from collections.abc import Mapping
from pathlib import Path

import click

from placeto_execution.measuring.real_devices import RealDevices
from placeto_experiments.arena import run_arena
from placeto_experiments.ledger.command import run_ledger
from placeto_experiments.model_check import check_models
from placeto_experiments.options import Run, experiment_options, scale_option
from placeto_experiments.paper.architectures import architectures
from placeto_experiments.paper.fidelity import fidelity
from placeto_experiments.paper.fidelity_tasks import WORKERS
from placeto_experiments.paper.generalise import generalise
from placeto_experiments.paper.measured_curves import measured_curves
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.rewards import rewards
from placeto_experiments.paper.table1 import table1
from placeto_experiments.paper.traversal import traversal
from placeto_tools.groups import Group
from placeto_tools.options import (
    Command,
    NearestChoice,
    devices_options,
    force_option,
    jobs_option,
    output_option,
)

FAMILIES = ("nmt", "ptb", "cifar10")  # of the paper; see `placeto_workloads.family_names`
ALL_FAMILIES = (*FAMILIES, "ptb-enas", "cifar10-enas")


@click.group(cls=Group)
def experiment() -> None:
    """Run an experiment of the paper: numbers, tables and figures in one folder.

    Ctrl-C stops it. The same command goes on with what was stopped or killed.

    \b
    placeto experiment generalise nmt -o results/generalise-nmt --scale smoke
    placeto experiment table1 -o results/table1 --jobs 2
    """


@experiment.command("generalise", cls=Command)
@click.argument("family", type=NearestChoice(ALL_FAMILIES))
@experiment_options("generalise")
def run_generalise(family: str, plan: Plan, run: Run) -> None:
    """Place unseen graphs of FAMILY with a policy that was trained on others.

    FAMILY is nmt, ptb or cifar10, or one of the last two with architectures that a controller came
    to, ptb-enas or cifar10-enas.

    Placeto and the RNN, zero-shot and optimized for each graph, beside random placements, a single
    GPU, Scotch, local search with as many evaluations, and the lower bound.

    \b
    placeto experiment generalise nmt -o results/generalise-nmt --jobs 2
    """
    run(generalise(family, plan), family)


@experiment.command("traversal", cls=Command)
@click.argument("source", default="inception-v3")
@experiment_options("traversal")
def run_traversal(source: str, plan: Plan, run: Run) -> None:
    """Train on some orders of visiting the groups of SOURCE, and place it in others.

    SOURCE is one of those of `placeto build`, Inception-V3 by default.

    \b
    placeto experiment traversal inception-v3 -o results/traversal
    """
    run(traversal(source, plan), source)


@experiment.command("architectures", cls=Command)
@click.argument("family", type=NearestChoice(ALL_FAMILIES), default="nmt")
@experiment_options("architectures", without=["--rnn-hparam"], decides="embedding")
def run_architectures(family: str, plan: Plan, run: Run) -> None:
    """Place unseen graphs of FAMILY with the whole graph embedding, and with parts of it.

    \b
    placeto experiment architectures nmt -o results/architectures
    """
    run(architectures(family, plan), family)


@experiment.command("rewards", cls=Command)
@click.argument("source", default="nmt:0")
@experiment_options("rewards", without=["--rnn-hparam"], decides="reward")
def run_rewards(source: str, plan: Plan, run: Run) -> None:
    """Train on SOURCE with rewards after each step, and with one after the last.

    SOURCE is one of those of `placeto build`, a member of the family nmt by default.

    \b
    placeto experiment rewards nmt:0 -o results/rewards --seeds 5
    """
    run(rewards(source, plan), source)


@experiment.command("table1", cls=Command)
@experiment_options("table1", without=["--gpus"])
def run_table1(plan: Plan, run: Run) -> None:
    """Place Inception-V3, NMT and NASNet on 2 and 4 GPUs with every placer, as in table 1.

    \b
    placeto experiment table1 -o results/table1 --jobs 2
    """
    run(table1(plan))


@experiment.command("fidelity", cls=Command)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@experiment_options(
    "fidelity", without=["--gpus", "--link", "--preset", "--hparam", "--rnn-hparam", "--jobs"]
)
@devices_options
def run_fidelity(models: tuple[str, ...], plan: Plan, run: Run, devices: RealDevices) -> None:
    """Run placements of models on two devices of this machine, beside the simulator.

    Op times are measured first. Nothing else should run meanwhile; --seeds is how many runs of each
    placement count. MODELS are some of inception-v3, nasnet, nmt-2, cifar10:3, ptb:3, nmt:3,
    transformers:resnet and transformers:gpt2, in sizes of the experiment's own; all of them by
    default. With a GPU they are some of inception-v3, nasnet and nmt-2, in larger sizes.

    \b
    placeto experiment fidelity inception-v3 -o results/fidelity
    placeto experiment fidelity --devices cuda:0,cpu:0 -o results/fidelity-gpu
    """
    options = [f"--devices {','.join(devices.names)}", f"--threads {devices.threads}"]
    chosen = [] if devices == WORKERS else options
    run(fidelity(models, plan, devices), *models, *chosen)


@experiment.command("measured-curves", cls=Command)
@click.argument("model", default="nmt-2")
@experiment_options("measured-curves", without=["--gpus", "--link", "--rnn-hparam", "--jobs"])
def run_measured_curves(model: str, plan: Plan, run: Run) -> None:
    """Let Placeto learn MODEL on the simulator, and on two workers of this machine that run it.

    MODEL is one of those of `fidelity`, in the sizes that it has there. Nothing else should run
    meanwhile.

    \b
    placeto experiment measured-curves nmt-2 -o results/measured-curves
    """
    run(measured_curves(model, plan), model)


# In an order in which the numbers that most people look for come first.
EVERYTHING: Mapping[str, tuple[click.Command, Mapping[str, object]]] = {
    "table1": (run_table1, {}),
    **{f"generalise-{family}": (run_generalise, {"family": family}) for family in FAMILIES},
    "traversal": (run_traversal, {}),
    "architectures": (run_architectures, {}),
    "rewards": (run_rewards, {}),
    "measured-curves": (run_measured_curves, {}),
    "fidelity": (run_fidelity, {}),
}


@experiment.command("all", cls=Command)
@click.argument("names", nargs=-1, type=NearestChoice(tuple(EVERYTHING)), metavar="[NAME]...")
@output_option("The folder, with one for each experiment.")
@scale_option
@jobs_option
@force_option
@click.pass_context
def run_all(
    context: click.Context,
    names: tuple[str, ...],
    output: Path,
    scale_name: str,
    jobs: int,
    force: bool,
) -> None:
    """Run all experiments of the paper, one after the other, or those of some NAMES.

    NAMES are table1, generalise-nmt, generalise-ptb, generalise-cifar10, traversal, architectures,
    rewards, measured-curves and fidelity. What is finished stays as it is; one that fails ends them
    all. The last two measure, and have one job whatever --jobs says.

    \b
    placeto experiment all -o results --jobs 2
    placeto experiment all table1 rewards -o results --scale smoke
    """
    chosen = [name for name in EVERYTHING if name in names or not names]
    for number, name in enumerate(chosen, start=1):
        command, arguments = EVERYTHING[name]
        several = {"jobs": jobs} if any(one.name == "jobs" for one in command.params) else {}
        click.echo(f"{number} of {len(chosen)}: {name}", err=True)
        context.invoke(
            command,
            **arguments,
            **several,
            output=output / name,
            scale_name=scale_name,
            force=force,
        )


experiment.add_command(run_arena)
experiment.add_command(run_ledger)
experiment.add_command(check_models)
