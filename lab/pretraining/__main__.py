"""How the bundled pretrained policy is made, from search to table; README.md has the commands."""

import argparse
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from placeto_policy import PlacementPolicy, load_policy, load_pretrained, preset
from placeto_simulator import Simulator
from pretraining import evaluation
from pretraining.imitation import Imitation, demonstrate
from pretraining.learning import learn, weights_of
from pretraining.problems import Part
from pretraining.reinforcement import Reinforcement, ReinforcementSettings
from pretraining.searched import Searched, search_part, searched_problems, training_problems

IMITATED = "imitated.safetensors"  # the best policy of each of the two trainings
POLICY = "policy.safetensors"


def search(asked: argparse.Namespace) -> None:
    """Search problems of the problem set, and keep the placements in FOLDER."""
    search_part(
        asked.folder,
        asked.part,
        evaluations=asked.evaluations,
        seconds=asked.seconds,
        variants=asked.variants,
        limit=asked.limit,
    )


def imitate(asked: argparse.Namespace) -> None:
    """Learn from the placements in FOLDER, and keep the policy there."""
    training = _searched(asked.folder, "training", asked.variants)
    policy = (
        load_policy(asked.policy)
        if asked.policy
        else PlacementPolicy(settings=preset("general"), seed=asked.seed)
    )
    run = Imitation(
        policy,
        [demonstrate(Simulator(each.problem, num_threads=1), each.placement) for each in training],
        weights=weights_of([each.name for each in training]),
        steps=asked.steps,
        seed=asked.seed,
    )
    described = _described(asked, [each.name for each in training])
    validation = _searched(asked.folder, "validation", 1)
    learn(run, asked.folder / "imitation.pt", asked.folder / IMITATED, validation, described)


def reinforce(asked: argparse.Namespace) -> None:
    """Let a policy learn from rollouts of its own, and keep the best one in FOLDER."""
    begun = asked.policy or asked.folder / IMITATED
    problems = dict(training_problems(asked.variants, asked.random_graphs))
    run = Reinforcement(
        load_policy(begun),
        [Simulator(problem, num_threads=1) for problem in problems.values()],
        weights=weights_of(list(problems)),
        steps=asked.steps,
        settings=ReinforcementSettings(graphs=asked.graphs, learning_rate=asked.learning_rate),
        seed=asked.seed,
    )
    described = _described(asked, list(problems))
    validation = _searched(asked.folder, "validation", 1)
    learn(run, asked.folder / "reinforcement.pt", asked.folder / POLICY, validation, described)


def evaluate(asked: argparse.Namespace) -> None:
    """Print costs of a policy on the problems that have a placement in FOLDER."""
    policy = load_policy(asked.policy) if asked.policy else load_pretrained()
    print(evaluation.header())
    found = []
    for each in _searched(asked.folder, asked.part, asked.variants):
        found.append(evaluation.evaluate(policy, each, asked.seed))
        print(evaluation.row(found[-1]), flush=True)
    print("\n" + evaluation.summary(found))


def _searched(folder: Path, part: Part, variants: int) -> list[Searched]:
    found = list(searched_problems(folder, part, variants=variants))
    if not found:
        raise SystemExit(f"{folder}: expected placements of the {part} part, got none")
    return found


def _described(asked: argparse.Namespace, names: Sequence[str]) -> str:
    """Return a text that identifies a run, which resumes from a checkpoint of the same one."""
    options = {name: str(value) for name, value in vars(asked).items() if name != "run"}
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    return f"{options}, {len(names)} problems ({digest})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the four commands."""
    parser = argparse.ArgumentParser(prog="python -m pretraining", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        added = commands.add_parser(run.__name__, help=run.__doc__)
        added.set_defaults(run=run)
        added.add_argument("folder", type=Path)
        added.add_argument("--variants", type=int, default=1, help="problems of each graph")
        added.add_argument("--seed", type=int, default=0)
        return added

    def training(run: Callable[[argparse.Namespace], None], steps: int) -> argparse.ArgumentParser:
        added = command(run)
        added.add_argument("--steps", type=int, default=steps, help="steps of Adam")
        added.add_argument("--policy", type=Path, help="policy file to begin with")
        return added

    searching = command(search)
    searching.add_argument("--part", choices=get_args(Part), required=True)
    budget = searching.add_mutually_exclusive_group(required=True)
    budget.add_argument("--evaluations", type=int, help="evaluations of each search")
    budget.add_argument("--seconds", type=float, help="CPU seconds of each search")
    searching.add_argument("--limit", type=int, help="number of problems")
    training(imitate, 4_000)
    reinforcing = training(reinforce, 3_000)
    reinforcing.add_argument("--random-graphs", type=int, help="graphs of each random shape")
    settings = ReinforcementSettings()
    reinforcing.add_argument("--graphs", type=int, default=settings.graphs, help="in a step")
    reinforcing.add_argument("--learning-rate", type=float, default=settings.learning_rate)
    evaluating = command(evaluate)
    evaluating.add_argument("--part", choices=get_args(Part), default="test")
    evaluating.add_argument("--policy", type=Path, help="policy file instead of the bundled one")
    asked = parser.parse_args(arguments)
    asked.run(asked)


if __name__ == "__main__":
    main()
