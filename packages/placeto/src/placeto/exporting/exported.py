"""A placement in the form of another library, and the lines that go with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from placeto.exporting.restriction import Price
from placeto.placing.costs import overflow_text
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_graphs import PlacementProblem


@dataclass(frozen=True)
class Exported:
    """A placement in another form.

    Attributes
    ----------
    content : text
        Text for the library: to paste, or of a file.
    remarks : texts
        Lines about it for the user.
    price : `Price` or None
        Cost of the form, if it cannot express every placement.
    details : mapping of text to values
        The same as ``content``, as values of JSON.
    """

    content: str
    remarks: tuple[str, ...] = ()
    price: Price | None = None
    details: Mapping[str, object] = field(default_factory=dict)


def price_text(
    problem: PlacementProblem, price: Price, what: str, evaluator: EvaluatorSpec = STEP
) -> str:
    """Return what a step costs with a form, and as placed."""
    overflow = overflow_text(problem.cluster, price.peak_memory)
    start, simulated = f"{evaluator.objective}:", ""
    if evaluator.simulates:
        start, simulated = "a step takes", ", simulated"
    return (
        f"{start} {evaluator.text(price.runtime)} with {what}{simulated}, and "
        f"{evaluator.text(price.runtime_as_placed)} as placed{overflow}"
    )
