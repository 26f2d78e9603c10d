"""``placeto experiment``."""

from collections.abc import Mapping
from pathlib import Path

import click

from placeto_execution.devices import RealDevices
from placeto_experiments.options import Run, experiment_options, scale_option
from placeto_experiments.paper.architectures import architectures
from placeto_experiments.paper.fidelity import fidelity
from placeto_experiments.paper.fidelity_tasks import TWO_CPUS
from placeto_experiments.paper.generalise import generalise
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
    """Run experiments of the paper, each in a folder.

    The folder has tables, figures and all finished trials. Ctrl-C stops an experiment. The same
    command resumes it.

    \b
    placeto experiment generalise nmt -o results/generalise-nmt --scale smoke
    placeto experiment table1 -o results/table1 --jobs 2
    """


@experiment.command("generalise", cls=Command)
@click.argument("family", type=NearestChoice(ALL_FAMILIES))
@experiment_options("generalise")
def run_generalise(family: str, plan: Plan, run: Run) -> None:
    """Place unseen graphs of FAMILY with a trained policy.

    The policy is trained on other graphs. By default on two K80s, at the scale small. FAMILY is
    nmt, ptb or cifar10; ptb-enas and cifar10-enas have the architectures of a controller.

    The other placers are policies trained on each graph, the RNN, random placements, a single GPU,
    Scotch and searches. The page has their ratios to a lower bound, too.

    \b
    placeto experiment generalise nmt -o results/generalise-nmt --jobs 2
    """
    run(generalise(family, plan), family)


@experiment.command("traversal", cls=Command)
@click.argument("source", default="inception-v3")
@experiment_options("traversal")
def run_traversal(source: str, plan: Plan, run: Run) -> None:
    """Place SOURCE in unseen orders of visiting its groups.

    The policies are trained on other random orders.

    SOURCE is a source of `placeto build`, by default inception-v3.

    \b
    placeto experiment traversal inception-v3 -o results/traversal
    """
    run(traversal(source, plan), source)


@experiment.command("architectures", cls=Command)
@click.argument("family", type=NearestChoice(ALL_FAMILIES), default="nmt")
@experiment_options("architectures", without=["--rnn-hparam"], decides="embedding")
def run_architectures(family: str, plan: Plan, run: Run) -> None:
    """Compare graph embeddings on unseen graphs of FAMILY.

    By default on nmt. The full embedding and two simpler ones are compared in two configurations.

    \b
    placeto experiment architectures nmt -o results/architectures
    """
    run(architectures(family, plan), family)


@experiment.command("rewards", cls=Command)
@click.argument("source", default="nmt:0")
@experiment_options("rewards", without=["--rnn-hparam"], decides="reward")
def run_rewards(source: str, plan: Plan, run: Run) -> None:
    """Compare intermediate with terminal rewards on SOURCE.

    SOURCE is a source of `placeto build`, by default nmt:0, the first graph of the family nmt.

    \b
    placeto experiment rewards nmt:0 -o results/rewards --seeds 5
    """
    run(rewards(source, plan), source)


@experiment.command("table1", cls=Command)
@experiment_options("table1", without=["--gpus"])
def run_table1(plan: Plan, run: Run) -> None:
    """Place the models of the paper's table 1 with every placer.

    The models are Inception-V3, NMT and NASNet in the paper's sizes, on two and four K80s.

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
    """Compare simulated with measured steps of MODELS.

    Two devices of this machine run the steps. By default all MODELS take part: inception-v3,
    nasnet, nmt-2, cifar10:3, ptb:3, nmt:3, transformers:resnet and transformers:gpt2, in small
    sizes. With a GPU they are inception-v3, nasnet and nmt-2, in larger sizes.

    Op times are measured first. Keep the machine idle meanwhile. --seeds is the number of runs of
    each placement that count.

    \b
    placeto experiment fidelity inception-v3 -o results/fidelity
    placeto experiment fidelity --devices cuda:0,cpu:0 -o results/fidelity-gpu
    """
    options = [f"--devices {','.join(devices.names)}", f"--threads {devices.threads}"]
    chosen = [] if devices == TWO_CPUS else options
    run(fidelity(models, plan, devices), *models, *chosen)


# The experiments with the most wanted numbers come first.
EVERYTHING: Mapping[str, tuple[click.Command, Mapping[str, object]]] = {
    "table1": (run_table1, {}),
    **{f"generalise-{family}": (run_generalise, {"family": family}) for family in FAMILIES},
    "traversal": (run_traversal, {}),
    "architectures": (run_architectures, {}),
    "rewards": (run_rewards, {}),
    "fidelity": (run_fidelity, {}),
}


@experiment.command("all", cls=Command)
@click.argument("names", nargs=-1, type=NearestChoice(tuple(EVERYTHING)), metavar="[NAME]...")
@output_option("Folder with a folder for each experiment.")
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
    """Run the experiments of the paper one after the other.

    By default all NAMES run: table1, generalise-nmt, generalise-ptb, generalise-cifar10, traversal,
    architectures, rewards and fidelity. The last one measures, and always has one job. An
    experiment that fails ends the command; the same command resumes.

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
