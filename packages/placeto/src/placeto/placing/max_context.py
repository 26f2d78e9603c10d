"""The largest context of a decode step at which a placement fits: `largest_context`."""

from bisect import bisect_left
from dataclasses import replace

import numpy as np

from placeto.errors import InputError
from placeto.placing.place_problem import PlaceSettings, place_problem
from placeto.problems.making import caches, problem_of, read_source
from placeto.problems.options import DECODE, LONGEST, ProblemOptions
from placeto.progress import Progress
from placeto_graphs import PlacementProblem

STEP_OF_CONTEXT = 256  # tokens, the unit of the result
EVALUATIONS = 300  # of the search that looks for a placement that fits


def largest_context(text: str, options: ProblemOptions, seed: int, progress: Progress) -> int:
    """Return the largest context at which a short search finds a placement that fits.

    It is a multiple of 256 tokens, or the maximum of the configuration.

    Parameters
    ----------
    text
        Source of the problem: a language model of transformers, or a file of weights.
    options
        Options of the problem, with the mode ``"decode"`` and without a context.
    seed
        Seed of the search.
    progress
        Display of the context that is tried.

    Raises
    ------
    InputError
        If the step is none of decoding, has a context, or does not fit with the least one.
    """
    if options.choice.mode != DECODE:
        raise InputError("--max-context: needs --mode decode")
    if options.choice.context is not None:
        raise InputError("--max-context: excludes --context")
    longest = _problem(text, options, LONGEST)
    limit = _context_of(longest)
    shortest = _problem(text, options, min(STEP_OF_CONTEXT, limit))

    def lacks_memory(context: int) -> bool:
        problem = _with_context(longest, shortest, context)
        progress.update(f"context of {context:,} tokens ...")
        settings = PlaceSettings(max_evaluations=EVALUATIONS, seed=seed)
        return not place_problem(problem, settings, progress).result.fits(problem.cluster)

    if not lacks_memory(limit):
        return limit
    steps = range(1, -(-limit // STEP_OF_CONTEXT))
    count = bisect_left(steps, True, key=lambda step: lacks_memory(step * STEP_OF_CONTEXT))
    if count == 0:
        raise InputError(
            f"--max-context: expected devices with more memory, as {text} fits with no "
            "context; name more devices, or fewer --weight-bits"
        )
    return count * STEP_OF_CONTEXT


def _problem(text: str, options: ProblemOptions, context: int | str) -> PlacementProblem:
    with_context = replace(options, choice=replace(options.choice, context=context))
    return problem_of(read_source(text, with_context), with_context)


def _context_of(problem: PlacementProblem) -> int:
    cache = problem.graph.cache
    if cache is None:
        raise InputError("--max-context: expected a step with a cache of tokens, got none")
    return cache.context


def _with_context(
    longest: PlacementProblem, shortest: PlacementProblem, context: int
) -> PlacementProblem:
    """Return a problem with the bytes of its caches in some context, for its memory alone.

    They grow with the context up to the bytes of the longest one, or to those of a window.
    """
    graph, growth = longest.graph, context / _context_of(shortest)
    bytes_of_shortest = dict(
        zip(shortest.graph.op_names, shortest.graph.parameter_bytes.tolist(), strict=True)
    )
    parameter_bytes, tensor_bytes = graph.parameter_bytes.copy(), graph.tensor_bytes.copy()
    for op in np.flatnonzero(caches(graph)).tolist():
        grown = round(bytes_of_shortest[graph.op_names[op]] * growth)
        parameter_bytes[op] = min(grown, parameter_bytes[op])
        tensors = graph.tensors_of_op[op]
        tensor_bytes[tensors] = np.minimum(tensor_bytes[tensors], parameter_bytes[op])
    scaled = replace(graph, parameter_bytes=parameter_bytes, tensor_bytes=tensor_bytes)
    return replace(longest, graph=scaled)
