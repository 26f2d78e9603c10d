"""Tables of the pages on bounds and searches."""
