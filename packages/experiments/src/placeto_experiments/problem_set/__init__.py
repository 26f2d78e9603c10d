"""Graphs of many kinds on clusters of many kinds, to train policies on and to judge them by."""

from placeto_experiments.problem_set.graphs import CorpusGraph, corpus_graphs
from placeto_experiments.problem_set.problems import CorpusProblem, corpus

__all__ = ["CorpusGraph", "CorpusProblem", "corpus", "corpus_graphs"]
