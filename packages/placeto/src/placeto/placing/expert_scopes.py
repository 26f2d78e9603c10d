"""Scopes of registered models and profiles that an expert takes for layers and branches."""

import re
from collections.abc import Sequence

from placeto_baselines import ExpertScopes

KNOWN = (
    # Inception: the parallel branches of each module.
    ExpertScopes(branch=r"(network\.(?:modules|reduction)_\w+(?:\.\d+)?)\.(\w+)"),
    # NASNet and ENAS: the blocks of each cell.
    ExpertScopes(branch=r"(network\.cells\.cell\d+)\.blocks\.(block\d+)"),
    # Translation: its layers, as Wu et al. (2016) place them.
    ExpertScopes(layer=r"(?:encoder|decoder)\.layer(\d+)", with_last_layer=r"attention|softmax"),
    # A profile that PipeDream's optimizer has placed: its stages.
    ExpertScopes(layer=r"stage(\d+)$"),
)


def expert_scopes(scopes: Sequence[str]) -> ExpertScopes | None:
    """Return the layers and branches that the scopes of a graph name, or None if they do not."""
    different = set(scopes)
    for known in KNOWN:
        pattern = known.branch or known.layer or ""
        if any(re.match(pattern, scope) for scope in different):
            return known
    return None
