"""The Placeto policy: learning where to place operation groups.

The package will hold the Markov decision process over placements, the graph embedding and the
policy network over groups of operations, and the REINFORCE trainer. It sees a problem only through
``placeto_graphs`` and its cost only through an ``Evaluator``, so any simulator can train it.
"""

__version__ = "0.1.0"
