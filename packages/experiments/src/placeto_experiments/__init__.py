"""The experiments of the paper, and how the bundled pretrained policy is made.

Where it is installed, the command has ``placeto experiment``. Begin to read in ``command.py``.
"""

__version__ = "0.3.0"
