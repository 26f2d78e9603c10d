"""The colours of devices and curves."""

# Colours that people with colour blindness tell apart (Okabe and Ito 2008).
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000"),
    "#999999",
)


def colour(index: int) -> str:
    """Return the colour of one of several things; after nine they repeat."""
    return COLOURS[index % len(COLOURS)]
