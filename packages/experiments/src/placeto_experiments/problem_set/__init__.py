"""Graphs of many kinds on clusters of many kinds, to train policies and to evaluate them."""

from placeto_experiments.problem_set.problems import (
    GraphEntry,
    ProblemEntry,
    problem_set,
    problem_set_graphs,
)

__all__ = ["GraphEntry", "ProblemEntry", "problem_set", "problem_set_graphs"]
