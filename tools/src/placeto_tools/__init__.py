"""The ``placeto`` command: options, tables, progress and pictures. Begin to read in ``main.py``."""

__version__ = "0.3.0"
