"""Where computation graphs come from, and what their ops cost.

The capture of training steps from PyTorch models, cost models that give each op a time on each kind
of device, the models of the experiments, and families of generated graphs. Everything that it makes
is an ``OpGraph`` of ``placeto_graphs``.
"""

from placeto_workloads.capture.capture import capture
from placeto_workloads.costs.kinds import DEVICE_KINDS, DeviceKind, Efficiency
from placeto_workloads.costs.roofline import cost_model, cost_models
from placeto_workloads.errors import WorkloadError, WorkloadWarning
from placeto_workloads.execution.executable_step import executable_step
from placeto_workloads.execution.executable_training import executable_training
from placeto_workloads.execution.training import ExecutableTraining
from placeto_workloads.families.family import Family, FamilyMember, family, family_names
from placeto_workloads.families.sampler import ArchitectureSampler, UniformSampler
from placeto_workloads.libraries.named import LIBRARIES, library_step
from placeto_workloads.models.cell_architecture import (
    Activation,
    Block,
    ConvolutionalArchitecture,
    ConvolutionalCell,
    Operation,
    RecurrentCell,
    cell_with_loose_ends,
)
from placeto_workloads.models.enas_convolutional import enas_image_network
from placeto_workloads.models.enas_recurrent import enas_language_model
from placeto_workloads.models.inception_v3 import inception_v3
from placeto_workloads.models.nasnet import NASNET_A, nasnet
from placeto_workloads.models.nmt import nmt
from placeto_workloads.models.training_step import TrainingStep
from placeto_workloads.profiling.profiler import profile
from placeto_workloads.programs.step import program_step
from placeto_workloads.registry import (
    MODELS,
    RegisteredModel,
    capture_step,
    graph_for,
    load,
    model_names,
    training_step,
)

__version__ = "0.2.0"

__all__ = [
    "DEVICE_KINDS",
    "LIBRARIES",
    "MODELS",
    "NASNET_A",
    "Activation",
    "ArchitectureSampler",
    "Block",
    "ConvolutionalArchitecture",
    "ConvolutionalCell",
    "DeviceKind",
    "Efficiency",
    "ExecutableTraining",
    "Family",
    "FamilyMember",
    "Operation",
    "RecurrentCell",
    "RegisteredModel",
    "TrainingStep",
    "UniformSampler",
    "WorkloadError",
    "WorkloadWarning",
    "capture",
    "capture_step",
    "cell_with_loose_ends",
    "cost_model",
    "cost_models",
    "enas_image_network",
    "enas_language_model",
    "executable_step",
    "executable_training",
    "family",
    "family_names",
    "graph_for",
    "inception_v3",
    "library_step",
    "load",
    "model_names",
    "nasnet",
    "nmt",
    "profile",
    "program_step",
    "training_step",
]
