"""Graphs of many kinds on clusters of many kinds, to train policies on and to judge them by."""

from placeto_workloads.corpus.graphs import CorpusGraph
from placeto_workloads.corpus.graphs import corpus_graphs
from placeto_workloads.corpus.problems import CorpusProblem
from placeto_workloads.corpus.problems import corpus

__all__ = ["CorpusGraph", "CorpusProblem", "corpus", "corpus_graphs"]
