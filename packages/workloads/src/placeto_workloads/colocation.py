"""Which co-location rules suit a model: data that comes with it."""

from collections.abc import Callable

from placeto_graphs import Grouping, OpGraph, colocate_by_id, colocate_gradients, colocate_updates

ColocationRule = Callable[[OpGraph], Grouping]

# In an unrolled network most gradients are read by one op, the next one back in time, so the rule
# of single consumers joins all steps: of some 2,500 groups of ptb it leaves 20, and of 1,600 of nmt
# 100, fewer than a placer is to see.
RULES_OF_UNROLLED_NETWORKS = (colocate_by_id, colocate_gradients, colocate_updates)
