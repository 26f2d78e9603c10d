"""Results of Addanki et al. (2019), and the cells of its table 1 that are fitted here."""

from typing import NamedTuple

SOURCE = "Addanki et al. (2019)"


class PaperRow(NamedTuple):
    """A row of table 1 of Addanki et al. (2019): runtimes in seconds, None for out of memory."""

    model: str  # as the table names it
    num_gpus: int  # number of Tesla K80s
    # The runtime of each placer
    cpu: float | None
    single: float | None
    expert: float | None
    scotch: float | None
    placeto: float
    rnn: float
    # Number of placements that each sampled until its best
    placeto_evaluations: int
    rnn_evaluations: int
    reduction: float  # of Placeto's runtime relative to the RNN's, as a fraction
    speed_up: float  # the RNN's number of placements over Placeto's, as printed

    @property
    def title(self) -> str:
        """Name of the row in tables."""
        return f"*paper*: {self.model}, {self.num_gpus} K80s"

    @property
    def runtimes(self) -> dict[str, float | None]:
        """Runtimes by the names of placers; that of Placeto is of the paper configuration."""
        names = ("cpu", "single", "expert", "scotch", "rnn")
        return {name: getattr(self, name) for name in names} | {"paper": self.placeto}


# Table 1 prints CPU only and single GPU once for each model.
PAPER_TABLE_1 = (
    PaperRow("Inception-V3", 2, 12.54, 1.56, 1.28, 1.54, 1.18, 1.17, 1_600, 7_800, -0.0085, 4.8),
    PaperRow("Inception-V3", 4, 12.54, 1.56, 1.15, 1.74, 1.13, 1.19, 5_800, 35_800, 0.05, 6.1),
    PaperRow("NMT", 2, 33.5, None, None, None, 2.32, 2.35, 20_400, 73_000, 0.013, 3.5),
    PaperRow("NMT", 4, 33.5, None, None, None, 2.63, 3.15, 94_000, 51_700, 0.165, 0.55),
    PaperRow("NASNet", 2, 37.5, 1.28, 0.86, 1.28, 0.86, 0.89, 3_500, 16_300, 0.034, 4.7),
    PaperRow("NASNet", 4, 37.5, 1.28, 0.84, 1.22, 0.74, 0.76, 29_000, 37_000, 0.026, 1.3),
)

# Placers with which a runtime here is fitted to that of the paper, by model (docs/costs.md). The
# width of NMT is chosen so that CPU only takes as long with four layers.
FITTED = {
    "inception-v3": ("cpu", "single"),
    "nasnet": ("cpu", "single"),
    "nmt-4": ("cpu",),
}

PARTITIONER_OVER_FULL = 0.13  # runtime of zero-shot placements, on nmt
AGGREGATOR_OVER_FULL = 0.20
TRAVERSAL_PLACETO = 0.05  # over the optimized placement, at most
TRAVERSAL_RNN = 0.30
