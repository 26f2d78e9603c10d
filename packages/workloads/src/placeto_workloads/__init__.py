"""Where computation graphs come from.

The package will hold the capture of training steps from PyTorch models, cost models that give each
operation a time on each kind of device, the models of the experiments, and families of generated
graphs. Everything it makes is an ``OpGraph`` of ``placeto_graphs``.
"""

__version__ = "0.1.0"
