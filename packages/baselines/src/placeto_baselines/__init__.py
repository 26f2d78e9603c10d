"""The placement schemes that Placeto is compared with.

One ``Placer`` each; all of them take the same problem and the same evaluator, so that results
compare. Every placer minimises the memory-penalised runtime, with the memory of the devices as the
limits.
"""

from placeto_baselines.bounds.lower_bound import bound_parts, lower_bound
from placeto_baselines.errors import BaselineError, StoppedSearchError
from placeto_baselines.exact.optimal import optimal
from placeto_baselines.expert.expert import ExpertPlacer
from placeto_baselines.expert.scopes import ExpertScopes
from placeto_baselines.fixed.random_placer import RandomPlacer
from placeto_baselines.fixed.single_device import CpuOnly, SingleDevice
from placeto_baselines.partitioning.metis import MetisPlacer
from placeto_baselines.partitioning.scotch import ScotchPlacer
from placeto_baselines.rnn.placer import RnnPlacer, TrainedRnnPlacer
from placeto_baselines.rnn.settings import RnnSettings
from placeto_baselines.scheduling.critical_path import CriticalPathPlacer
from placeto_baselines.scheduling.heft import Heft
from placeto_baselines.scheduling.m_etf import MEtf
from placeto_baselines.scheduling.m_sct import MSct
from placeto_baselines.scheduling.m_topo import MTopo
from placeto_baselines.search.coarse_to_fine import CoarseToFine
from placeto_baselines.search.local_search import LocalSearch

__version__ = "0.3.0"

__all__ = [
    "BaselineError",
    "CoarseToFine",
    "CpuOnly",
    "CriticalPathPlacer",
    "ExpertPlacer",
    "ExpertScopes",
    "Heft",
    "LocalSearch",
    "MEtf",
    "MSct",
    "MTopo",
    "MetisPlacer",
    "RandomPlacer",
    "RnnPlacer",
    "RnnSettings",
    "ScotchPlacer",
    "SingleDevice",
    "StoppedSearchError",
    "TrainedRnnPlacer",
    "bound_parts",
    "lower_bound",
    "optimal",
]
