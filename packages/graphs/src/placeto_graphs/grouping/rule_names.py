"""Names of co-location rules: as which they travel with a problem, and through its file."""

from collections.abc import Iterable
from functools import partial

from placeto_graphs.errors import GraphError, shown
from placeto_graphs.grouping.colocation import (
    Rule,
    check_pattern,
    colocate_by_id,
    colocate_gradients,
    colocate_scopes,
    colocate_single_consumers,
    colocate_updates,
)

NAMED_RULES: dict[str, Rule] = {
    "id": colocate_by_id,
    "gradients": colocate_gradients,
    "updates": colocate_updates,
    "single-consumers": colocate_single_consumers,
}
"""The co-location rules that files name, but for those of scopes."""
SCOPES = "scopes:"  # before the pattern of `colocate_scopes`


def rules_of_names(names: Iterable[str]) -> tuple[Rule, ...]:
    r"""Return the co-location rules of some names.

    Parameters
    ----------
    names
        ``"id"``, ``"gradients"``, ``"updates"``, ``"single-consumers"``, or ``"scopes:"`` with the
        pattern of `colocate_scopes` behind it.

    Raises
    ------
    GraphError
        When a name is none of these, or the pattern is not a regular expression.

    Examples
    --------
    >>> from placeto_graphs import DEFAULT_RULES
    >>> names = ["id", "gradients", "updates", "single-consumers"]
    >>> rules_of_names(names) == DEFAULT_RULES
    True
    >>> rules_of_names([r"scopes:decoder\.step\d+"])[0].keywords
    {'pattern': 'decoder\\.step\\d+'}
    """
    return tuple(_rule_of_name(number, name) for number, name in enumerate(names))


def names_of_rules(rules: Iterable[Rule]) -> tuple[str, ...] | None:
    r"""Return the names of co-location rules, None if one of them has no name.

    Parameters
    ----------
    rules
        Rules, those of scopes as ``functools.partial(colocate_scopes, pattern=...)``.

    Examples
    --------
    >>> from functools import partial
    >>> from placeto_graphs import DEFAULT_RULES, colocate_scopes
    >>> names_of_rules(DEFAULT_RULES)
    ('id', 'gradients', 'updates', 'single-consumers')
    >>> names_of_rules([partial(colocate_scopes, pattern=r"decoder\.step\d+")])
    ('scopes:decoder\\.step\\d+',)
    """
    names = [_name_of_rule(rule) for rule in rules]
    known = tuple(name for name in names if name is not None)
    return known if len(known) == len(names) else None


def _rule_of_name(number: int, name: str) -> Rule:
    if name.startswith(SCOPES):
        pattern = name.removeprefix(SCOPES)
        check_pattern(f"rules[{number}]", pattern)
        return partial(colocate_scopes, pattern=pattern)
    if name not in NAMED_RULES:
        raise GraphError(
            f"rules[{number}]: expected one of {', '.join(NAMED_RULES)} or {SCOPES}PATTERN, "
            f"got {shown(name)}"
        )
    return NAMED_RULES[name]


def _name_of_rule(rule: Rule) -> str | None:
    if isinstance(rule, partial) and rule.func is colocate_scopes and not rule.args:
        return SCOPES + str(rule.keywords["pattern"])
    return next((name for name, known in NAMED_RULES.items() if known is rule), None)
