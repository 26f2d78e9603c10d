"""``placeto experiment rewards``: a reward after each step, and one after the last step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto.texts import seconds_text, share_text
from placeto.trials.records import Episode
from placeto.trials.tables import NOTHING
from placeto.trials.trials import Experiment, Graph, Page, Results, Trial
from placeto_experiments.paper.pages import (
    COLLAPSED_ON_AVERAGE,
    ENTROPY,
    bands_figure,
    collapse_remark,
    count_text,
    paragraphs,
    spread,
    table,
    updates_curve,
)
from placeto_experiments.paper.placers import training, trial
from placeto_experiments.paper.plan import (
    Plan,
    name_of,
    source_maker,
    without_simulated_features,
)
from placeto_experiments.paper.tasks import FinalEpisode
from placeto_policy import Settings

LEARNING, ENTROPIES, EPISODE = "learning.png", "entropy.png", "episode.png"
NEAR = 1.05  # times the fastest end of all trainings
TITLES = {
    "intermediate": "Intermediate",
    "intermediate-undiscounted": "Intermediate, undiscounted",
    "terminal": "Terminal",
    "counterfactual": "Counterfactual",
    "paper-intermediate": "Intermediate, paper configuration",
    "paper-terminal": "Terminal, paper configuration",
}
Curve = NDArray[np.float64]


def rewards(source: str, plan: Plan) -> Experiment:
    """Return the experiment on one graph: all rewards, in two configurations."""
    name = name_of(source)
    trials: list[Trial] = []
    for seed in plan.seeds:
        for reward, settings in _settings(plan).items():
            episode = f"{reward}-final-episode"
            trials += [
                training(reward, (Graph(name),), settings, seed),
                trial(FinalEpisode, episode, Graph(name), seed, policy=reward),
            ]
    return Experiment(
        name="rewards",
        title=f"Rewards on {source}",
        options={"source": source},
        problems={name: source_maker(source, plan)},
        trials=trials,
        page=lambda results: _page(results, name, plan),
    )


def _settings(plan: Plan) -> dict[str, Settings]:
    """Return the settings of each kind of rewards, and of two in the paper configuration."""
    settings = without_simulated_features(plan.training_settings)
    intermediate = replace(settings, reward="intermediate")
    kinds = {"intermediate": intermediate}
    if settings.discount != 1:
        kinds["intermediate-undiscounted"] = replace(intermediate, discount=1.0)
    kinds["terminal"] = replace(settings, reward="terminal")
    kinds["counterfactual"] = replace(settings, reward="counterfactual")
    kinds["paper-intermediate"] = plan.paper_settings
    kinds["paper-terminal"] = replace(plan.paper_settings, reward="terminal")
    return kinds


def _page(results: Results, name: str, plan: Plan) -> Page:
    kinds = list(_settings(plan))
    learning, entropies, steps = (dict[str, list[Curve]]() for _ in range(3))  # by title
    evaluations: dict[str, list[int]] = {}
    for reward in kinds:
        title = TITLES[reward]
        trained = [results.trained(f"{reward}-{seed}") for seed in plan.seeds]
        learning[title] = [updates_curve(record.runtimes) for record in trained]
        entropies[title] = [updates_curve(record.entropies) for record in trained]
        evaluations[title] = [record.evaluations for record in trained]
        steps[title] = [_steps(results, reward, name, seed) for seed in plan.seeds]
    fastest = min(float(curve[-1, 1]) for curves in learning.values() for curve in curves)

    def row(reward: str) -> list[str]:
        title = TITLES[reward]
        curves = learning[title]
        return [
            title,
            spread((curve[-1, 1] for curve in steps[title]), seconds_text),
            spread((curve[-1, 1] for curve in curves), seconds_text),
            _until(curves, NEAR * fastest),
            _variation(curves),
            spread(evaluations[title], count_text),
        ]

    runtimes = table(
        "reward|>greedy placement|>episodes at the end"
        f"|>updates to within {100 * (NEAR - 1):.0f} %|>variation over seeds|>evaluations",
        map(row, kinds),
    )
    # An episode begins with all groups on one GPU.
    collapsed = {
        title: [
            seed
            for seed, curve in zip(plan.seeds, curves, strict=True)
            if abs(curve[-1, 1] / curve[0, 1] - 1) <= COLLAPSED_ON_AVERAGE
        ]
        for title, curves in steps.items()
    }
    return Page(
        paragraphs("rewards", plan=plan, runtimes=runtimes, collapsed=collapse_remark(collapsed)),
        {
            LEARNING: bands_figure(learning, "updates", "Learning"),
            ENTROPIES: bands_figure(entropies, "updates", "Entropy", ENTROPY),
            EPISODE: bands_figure(steps, "steps of the episode", "One final episode"),
        },
    )


def _steps(results: Results, reward: str, name: str, seed: int) -> Curve:
    costs = results.record(Episode, f"{reward}-final-episode", name, seed).steps
    return np.stack([np.arange(len(costs)), np.array(costs)], axis=1)


def _until(curves: Sequence[Curve], runtime: float) -> str:
    """Return the updates until the mean of an update was so fast; a dash if one never was."""
    near = [np.flatnonzero(curve[:, 1] <= runtime) for curve in curves]
    if not all(map(len, near)):
        return NOTHING
    updates = [curve[rows[0], 0] for curve, rows in zip(curves, near, strict=True)]
    return spread(updates, count_text)


def _variation(curves: Sequence[Curve]) -> str:
    """Return the standard deviation over the seeds, relative to their mean; a dash for one seed."""
    if len(curves) < 2:
        return NOTHING
    runtimes = np.stack([curve[:, 1] for curve in curves])
    return share_text(float((runtimes.std(axis=0, ddof=1) / runtimes.mean(axis=0)).mean()))
