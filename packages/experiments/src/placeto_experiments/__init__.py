"""The experiments of the paper.

Where it is installed, the command has ``placeto experiment``. Begin to read in ``command.py``.
"""

__version__ = "0.3.0"
