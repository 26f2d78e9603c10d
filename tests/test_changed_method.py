"""The patch of docs/change-the-method.md applies, and does what the page says of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import placeto_policy

PAGE = Path("docs/change-the-method.md")
CHECK = """
import numpy as np
import networkx as nx
import torch
from placeto_policy import PlacementEnvironment, PlacementPolicy, Settings, Trainer, load_policy
from placeto_policy import most_evaluations, save_policy
from placeto_policy.example import BusiestDevice, two_chains

settings = Settings(
    reward="logarithmic", node_features="costs-and-degree", device_features="loads",
    order="reverse", updates=2, workers=2, hidden_units=8, message_rounds=1, discount=1.0,
)
evaluator = BusiestDevice(two_chains())
problem = evaluator.problem
environment = PlacementEnvironment.for_policy(evaluator, settings, reward=settings.reward)
environment.reset(num_episodes=2)
assert (environment.order == problem.group_graph.topological_order[::-1]).all()
groups = nx.DiGraph(problem.group_graph.edges.tolist())
mean_degree = max(1.0, groups.number_of_edges() / problem.num_groups)
degrees = [groups.out_degree(group) / mean_degree for group in range(problem.num_groups)]
features = environment.states().features("costs-and-degree")
assert torch.allclose(features[4, :, 1], torch.tensor(degrees, dtype=torch.float32))
first = environment.costs.copy()
rewards = 0.0
while not environment.is_over:
    rewards = rewards + environment.step(np.array([environment.time % 2, 0]))
assert np.allclose(rewards, np.log(first / environment.costs))
assert rewards[0] > 0
assert most_evaluations(problem, "logarithmic", settings) == problem.num_groups
assert settings.return_discount == 1.0
other = BusiestDevice(two_chains(5))  # both side by side in one batch
trainer = Trainer([evaluator, other], settings)
before = [weight.clone() for weight in trainer.policy.parameters()]
trainer.update()
changed = [not a.equal(b) for a, b in zip(before, trainer.policy.parameters(), strict=True)]
assert any(changed)
save_policy(trainer.trained_policy, "policy.safetensors")
assert load_policy("policy.safetensors").settings.order == "reverse"
print("checked")
"""


def patched(source: str, lines: list[str]) -> str:
    """Return a text with the hunks of a patch, each of which is in it once."""
    for hunk in re.split(r"^@@.*$", "\n".join(lines), flags=re.MULTILINE)[1:]:
        rows = hunk.strip("\n").split("\n")
        before = "\n".join(row[1:] for row in rows if not row.startswith("+"))
        after = "\n".join(row[1:] for row in rows if not row.startswith("-"))
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    return source


def test_a_reward_a_feature_and_an_order_are_added_by_the_patch_of_the_page(
    tmp_path: Path,
) -> None:
    (patch,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    package = Path(placeto_policy.__file__).parent
    shutil.copytree(package, tmp_path / package.name)
    files = re.split(r"^--- a/(.*)\n\+\+\+ b/.*\n", patch, flags=re.MULTILINE)[1:]
    assert len(files) == 6  # three, each with its hunks
    for name, hunks in zip(files[::2], files[1::2], strict=True):
        path = tmp_path / Path(name).relative_to("packages/policy/src")
        path.write_text(patched(path.read_text(), hunks.splitlines()))
    added = [line for line in patch.splitlines() if re.match(r"\+(?!\+)", line)]
    assert f"{len(added)} lines" in PAGE.read_text()
    search = os.pathsep.join([str(tmp_path), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", CHECK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "checked\n", run.stderr
