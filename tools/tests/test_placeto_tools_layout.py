"""Where the modules of the command are."""

from collections import Counter
from pkgutil import walk_packages

import placeto_tools


def test_no_module_has_the_name_of_another() -> None:
    found = walk_packages(placeto_tools.__path__, "placeto_tools.")
    names = Counter(module.name.rpartition(".")[2] for module in found)
    assert len(names) > 100  # they were found at all
    assert [name for name, count in names.items() if count > 1] == []
