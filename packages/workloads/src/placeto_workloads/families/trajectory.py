"""The architectures that a training of a controller evaluated, sampled again."""

import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto_workloads.families.search_spaces import ConvolutionalSpace, RecurrentSpace
from placeto_workloads.models.cell_architecture import ConvolutionalArchitecture, RecurrentCell

_SHIPPED = Path(__file__).parent / "trajectories"


class ControllerSampler:
    """An `ArchitectureSampler` of the architectures that trainings evaluated.

    As in Addanki et al. (2019): every architecture that a controller sampled for its updates is
    equally likely; one that it sampled often is sampled often. The trainings are those on shapes
    and on the small grammar that come with the package; ``lab/notes/enas-families.md`` in the
    repository tells how they were made.
    """

    def recurrent_cell(self, generator: np.random.Generator) -> RecurrentCell:
        """Return a cell that the controller of recurrent cells sampled.

        Parameters
        ----------
        generator
            Source of random numbers.
        """
        choices = shipped_choices(RecurrentSpace.name)
        return RecurrentSpace().architecture(generator.choice(choices).tolist())

    def convolutional_cells(self, generator: np.random.Generator) -> ConvolutionalArchitecture:
        """Return the two cells that the controller of image networks sampled.

        Parameters
        ----------
        generator
            Source of random numbers.
        """
        choices = shipped_choices(ConvolutionalSpace.name)
        return ConvolutionalSpace().architecture(generator.choice(choices).tolist())


@cache
def shipped_choices(space: str) -> NDArray[np.int16]:
    """Return int16[N, decisions], the architectures of a space in the order of their training."""
    content = json.loads(gzip.decompress((_SHIPPED / f"{space}.json.gz").read_bytes()))
    return np.array(content["choices"], np.int16)
