"""The placement schemes that Placeto is compared with.

The package will hold one ``Placer`` each for a single device, the CPU alone, random placement,
graph partitioning, expert placement, the recurrent policy of earlier work, and list schedulers and
local search. All of them take the same problem and the same evaluator, so that results compare.
"""

__version__ = "0.1.0"
