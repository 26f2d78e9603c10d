"""Evaluation of the bundled policy, from search to table; README.md has the commands."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from placeto_policy import load_policy, load_pretrained
from pretraining import evaluation
from pretraining.problems import Split
from pretraining.searched import search_split, searched_problems


def search(options: argparse.Namespace) -> None:
    """Search problems of the problem set, and write the placements into FOLDER."""
    limits = (options.evaluations, options.seconds, options.limit)
    search_split(options.folder, options.split, *limits)


def evaluate(options: argparse.Namespace) -> None:
    """Print costs of a policy on the problems that have a placement in FOLDER."""
    policy = load_policy(options.policy) if options.policy else load_pretrained()
    problems = list(searched_problems(options.folder, options.split))
    if not problems:
        raise SystemExit(
            f"{options.folder}: expected placements of the {options.split} split, got none"
        )
    evaluations = []
    for problem in problems:
        print(f"{problem.name} ...", file=sys.stderr)
        evaluations.append(evaluation.evaluate(policy, problem, options.seed))
    for table in evaluation.tables(evaluations):
        print(table.markdown(), end="\n\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(prog="python -m pretraining", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def add_command(run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        command = commands.add_parser(run.__name__, help=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument("folder", type=Path)
        command.add_argument("--split", choices=get_args(Split), default="test")
        return command

    searching = add_command(search)
    budget = searching.add_mutually_exclusive_group(required=True)
    budget.add_argument("--evaluations", type=int, help="evaluations of each search")
    budget.add_argument("--seconds", type=float, help="CPU seconds of each search")
    searching.add_argument("--limit", type=int, help="number of problems")
    evaluating = add_command(evaluate)
    evaluating.add_argument("--seed", type=int, default=0)
    evaluating.add_argument("--policy", type=Path, help="policy file instead of the bundled one")
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
