"""What the user chose for an experiment."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from placeto_baselines import RnnSettings
from placeto_experiments.paper.scale import Scale
from placeto_policy import Settings, preset

# How often as many updates and placements as ours the method as published has: it learns slower,
# and a step of it asks for no placement but its own.
AS_PUBLISHED: Mapping[str, int] = {"updates": 3, "placements": 5}


@dataclass(frozen=True)
class Plan:
    """What the user chose for an experiment.

    Attributes
    ----------
    scale : `Scale`
        How large it is.
    settings : `Settings`
        The hyperparameters of Placeto.
    rnn_settings : `RnnSettings`
        Those of the RNN.
    num_gpus : int
        On how many K80s graphs are placed.
    link : text or None
        What joins them; by default one outgoing bus for each.
    """

    scale: Scale
    settings: Settings
    rnn_settings: RnnSettings
    num_gpus: int
    link: str | None = None

    @property
    def seeds(self) -> range:
        """The seeds."""
        return range(self.scale.seeds)

    @property
    def training_settings(self) -> Settings:
        """The hyperparameters of a policy that is trained beforehand."""
        return replace(self.settings, updates=self.scale.number("updates"))

    def described(self) -> dict[str, Any]:
        """Return all of it by name, as JSON knows it."""
        return {
            "gpus": self.num_gpus,
            "link": self.link,
            "seeds": list(self.seeds),
            "scale": self.scale.as_dict(),
            "settings": asdict(self.settings),
            "rnn_settings": self.rnn_settings.as_dict(),
            "as_published": {**AS_PUBLISHED, "settings": asdict(preset("paper"))},
        }
