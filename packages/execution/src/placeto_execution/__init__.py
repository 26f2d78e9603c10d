"""Runs a placed step on real devices, and measures it.

A step that can be run is an ``ExecutableStep`` of `placeto_graphs`. The results are an
``EvaluationBatch`` and a ``StepTimeline``, as of the simulator.
"""

from placeto_execution.errors import ExecutionError
from placeto_execution.executor import ExecutedStep, Executor
from placeto_execution.programs import StepProgram, compile_step

__version__ = "0.3.0"

__all__ = [
    "ExecutedStep",
    "ExecutionError",
    "Executor",
    "StepProgram",
    "compile_step",
]
