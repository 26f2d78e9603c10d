"""The ``placeto`` command.

The package will hold everything a user does from the shell: making problem files, placing with any
of the schemes, training, evaluating and drawing. It is the only package that sees all the others.
"""

__version__ = "0.1.0"
