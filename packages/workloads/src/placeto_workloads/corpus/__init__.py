"""Graphs of many kinds on clusters of many kinds, to train policies on and to judge them by."""

from placeto_workloads.corpus.graphs import CorpusGraph, corpus_graphs
from placeto_workloads.corpus.problems import CorpusProblem, corpus

__all__ = ["CorpusGraph", "CorpusProblem", "corpus", "corpus_graphs"]
