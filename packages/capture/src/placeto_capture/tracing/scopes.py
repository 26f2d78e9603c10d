"""Which module is running, and which one failed in which line of its code."""

import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

# Code that is not the model's: PyTorch's own modules, and this package.
OTHERS = (Path(torch.__file__).parent, Path(__file__).parents[1])


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


def failed_line(error: BaseException) -> str:
    """Return the innermost line of a model's code that an exception came through.

    Such as ``" (line 12 of model.py)"``; nothing where there is none.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        if file.is_absolute() and not any(file.is_relative_to(folder) for folder in OTHERS):
            return f" (line {line} of {file.name})"
    return ""
