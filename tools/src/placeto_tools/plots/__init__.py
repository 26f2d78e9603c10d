"""Drawings, as PNG files."""

import logging

# What matplotlib says of a home that it cannot write to, or of fonts, is nothing to act on.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
