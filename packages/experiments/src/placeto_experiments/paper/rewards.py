"""``placeto experiment rewards``: rewards of each step against one after the last."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto.texts import seconds_text, share_text
from placeto.trials.comparison import NOTHING
from placeto.trials.records import Episode
from placeto.trials.trials import Experiment, Graph, Page, Results, Trial, placing
from placeto_experiments.paper.figures import bands_figure
from placeto_experiments.paper.placers import (
    UPDATES_AS_PUBLISHED,
    as_published,
    train_placeto,
    without_simulated_features,
)
from placeto_experiments.paper.placing_tasks import FinalEpisode
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import name_of, source_maker
from placeto_experiments.paper.published import SOURCE
from placeto_experiments.paper.statistics import spread
from placeto_experiments.paper.wording import count_text, markdown_table
from placeto_policy import Settings

LEARNING, EPISODE = "learning.png", "episode.png"
NEAR = 1.05  # times the fastest end of all trainings
Curve = NDArray[np.float64]


def rewards(source: str, plan: Plan) -> Experiment:
    """Return the experiment on one graph: all rewards, the paper configuration for longer."""
    name = name_of(source)
    trials: list[Trial] = []
    for seed in plan.seeds:
        for reward, settings in _settings(plan).items():
            policy = train_placeto(reward, (Graph(name),), settings, seed)
            label = _episode(reward)
            task = FinalEpisode(
                label=label, graph=Graph(name), seed=seed, policy=f"{reward}-{seed}"
            )
            trials += [policy, placing(task, label, Graph(name), seed, policy.name)]
    return Experiment(
        name="rewards",
        title=f"Rewards on {source}",
        options={"source": source},
        problems={name: source_maker(source, plan)},
        trials=trials,
        page=lambda results: _page(results, name, plan),
    )


def _settings(plan: Plan) -> dict[str, Settings]:
    """Return the settings of each kind of rewards, and of the paper's two in its own setting."""
    settings = without_simulated_features(plan.training_settings)
    intermediate = replace(settings, reward="intermediate")
    kinds = {"intermediate": intermediate}
    if settings.discount != 1:
        kinds["intermediate-undiscounted"] = replace(intermediate, discount=1.0)
    kinds["terminal"] = replace(settings, reward="terminal")
    kinds["counterfactual"] = replace(settings, reward="counterfactual")
    kinds["published-intermediate"] = as_published(plan)
    kinds["published-terminal"] = replace(as_published(plan), reward="terminal")
    return kinds


def _episode(reward: str) -> str:
    return f"{reward}-final-episode"


def _page(results: Results, name: str, plan: Plan) -> Page:
    kinds = list(_settings(plan))
    learning: dict[str, list[Curve]] = {
        reward: [_learning(results, reward, seed) for seed in plan.seeds] for reward in kinds
    }
    steps: dict[str, list[Curve]] = {
        reward: [_steps(results, reward, name, seed) for seed in plan.seeds] for reward in kinds
    }
    fastest = min(float(curve[-1, 1]) for curves in learning.values() for curve in curves)
    table = markdown_table(
        kinds,
        {
            "reward": str,
            ">greedy placement": lambda reward: spread(
                curve[-1, 1] for curve in steps[reward]
            ).text(seconds_text),
            ">episodes at the end": lambda reward: spread(
                curve[-1, 1] for curve in learning[reward]
            ).text(seconds_text),
            f">updates to within {100 * (NEAR - 1):.0f} %": lambda reward: _until(
                learning[reward], NEAR * fastest
            ),
            ">variation over seeds": lambda reward: share_text(_variation(learning[reward])),
            ">placements": lambda reward: count_text(results.trained(f"{reward}-0").evaluations),
        },
    )
    parts = [
        f"{plan.scale.number('updates'):,} updates of {plan.settings.workers} episodes each. "
        "Intermediate rewards need what every placement on the way costs, terminal ones only what "
        "the last one does, and counterfactual ones what it does with each group elsewhere. "
        f"In {SOURCE}, which has no counterfactual ones, intermediate rewards converge faster and "
        "with less variance than terminal ones; its returns are undiscounted. Steps do not look "
        "ahead: it would tell the policy its intermediate reward beforehand. The paper "
        f"configuration has the paper's hyperparameters and {UPDATES_AS_PUBLISHED} times as many "
        "updates.",
        table,
        "Runtimes are memory-penalised, and means over the seeds, in brackets the least and the "
        "most. Greedy placement: of the policy that the training leaves, by default the one with "
        "its best greedy placement of the graph, in the paper configuration the last one. Episodes "
        "at the end: "
        "the mean runtime of the sampled placements of the last update. Updates: until the mean of "
        "an update was so near the fastest end of all trainings; nothing if "
        "it never was with some seed. "
        "Variation: standard deviation over seeds, in parts of the mean, averaged over updates.",
        f"![Learning curves]({LEARNING})",
        "Mean runtime of the placements that the episodes of an update end with; the band is from "
        "the least to the most of the seeds.",
        f"![Runtime along the last episode]({EPISODE})",
        "Memory-penalised runtime after each step of the greedy episode after training.",
    ]
    return Page(
        parts,
        {
            LEARNING: bands_figure(learning, "updates", "Learning"),
            EPISODE: bands_figure(steps, "steps of the episode", "One final episode"),
        },
    )


def _learning(results: Results, reward: str, seed: int) -> Curve:
    rows = results.trained(f"{reward}-{seed}").updates
    return np.array([[update, runtime] for update, _, runtime, _ in rows])


def _steps(results: Results, reward: str, name: str, seed: int) -> Curve:
    costs = results.record(Episode, _episode(reward), name, seed).steps
    return np.stack([np.arange(len(costs)), np.array(costs)], axis=1)


def _until(curves: Sequence[Curve], runtime: float) -> str:
    """Return the updates until the mean of an update was so fast; nothing if one never was."""
    near = [np.flatnonzero(curve[:, 1] <= runtime) for curve in curves]
    if not all(map(len, near)):
        return NOTHING
    found = [curve[rows[0], 0] for curve, rows in zip(curves, near, strict=True)]
    return spread(found).text(count_text)


def _variation(curves: Sequence[Curve]) -> float:
    runtimes = np.stack([curve[:, 1] for curve in curves])
    return float((runtimes.std(axis=0) / runtimes.mean(axis=0)).mean())
