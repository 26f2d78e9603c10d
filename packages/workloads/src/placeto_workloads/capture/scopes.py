"""Which module is running, and which one failed."""

import sys
from typing import Any

from torch import nn


class ModuleScopes:
    """Follows the calls of a model's modules.

    Attributes
    ----------
    paths : list of str
        The paths of the modules that are being called, the innermost last.
    """

    def __init__(self, model: nn.Module) -> None:
        self.paths: list[str] = []
        self._failed: tuple[BaseException, str] | None = None
        for path, module in model.named_modules():
            self._follow(path, module)

    def failed(self, error: BaseException) -> str | None:
        """Return the path of the innermost module that an exception left, if it left one."""
        return self._failed[1] if self._failed is not None and self._failed[0] is error else None

    def _follow(self, path: str, module: nn.Module) -> None:
        def enter(_module: nn.Module, _args: Any) -> None:
            self.paths.append(path)

        def leave(_module: nn.Module, _args: Any, _result: Any) -> None:
            self.paths.pop()
            error = sys.exc_info()[1]
            if error is not None and self.failed(error) is None:
                self._failed = error, path

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)
