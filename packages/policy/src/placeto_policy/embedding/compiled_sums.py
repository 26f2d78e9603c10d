"""How loops of sums are compiled, and the arrays that they are of."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import compiled

# Sums may be taken in any order and products fused into them; NaN and infinity keep their meaning.
compiled_sums = partial(compiled, fastmath={"contract", "nsz", "reassoc"})

Floats = NDArray[np.float32]
