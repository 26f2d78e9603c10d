"""Pants goal ``lint`` over pages, docstrings and the sizes of rooms.

The checks are in `pages`, `reference` and `sizes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pants.core.goals.lint import LintFilesRequest, LintResult, Partitions
from pants.engine.fs import DigestContents, PathGlobs
from pants.engine.rules import Get, collect_rules, rule
from pants.option.option_types import SkipOption
from pants.option.subsystem import Subsystem
from repository import pages, reference
from repository.sizes import COUNTED, TABLE, read_table, too_large


class PageStyle(Subsystem):
    options_scope = "page-style"
    name = "page style"
    help = "The style of pages, see docs/contributing.md."

    skip = SkipOption("lint")


class Reference(Subsystem):
    options_scope = "reference"
    name = "reference"
    help = "Docstrings of exported functions and classes, see docs/contributing.md."

    skip = SkipOption("lint")


class Sizes(Subsystem):
    options_scope = "sizes"
    name = "sizes"
    help = "The number of tokens of code of each room, see docs/contributing.md."

    skip = SkipOption("lint")


class PageStyleRequest(LintFilesRequest):
    tool_subsystem = PageStyle


class ReferenceRequest(LintFilesRequest):
    tool_subsystem = Reference


class SizesRequest(LintFilesRequest):
    tool_subsystem = Sizes


@rule
async def partition_pages(
    request: PageStyleRequest.PartitionRequest, subsystem: PageStyle
) -> Partitions[str, Any]:
    return partitions(request.files, pages.PAGE.fullmatch, subsystem.skip)


@rule
async def partition_modules(
    request: ReferenceRequest.PartitionRequest, subsystem: Reference
) -> Partitions[str, Any]:
    return partitions(request.files, reference.MODULE.fullmatch, subsystem.skip)


@rule
async def partition_code(
    request: SizesRequest.PartitionRequest, subsystem: Sizes
) -> Partitions[str, Any]:
    # Pants divides files into batches, and a room has to be counted whole.
    is_affected = any(COUNTED.search(file) for file in request.files) and not subsystem.skip
    return Partitions.single_partition([TABLE]) if is_affected else Partitions()


def partitions(
    names: Iterable[str], matches: Callable[[str], Any], skip: bool
) -> Partitions[str, Any]:
    """Return the files that a check reads."""
    files = [] if skip else [name for name in names if matches(name)]
    return Partitions.single_partition(files) if files else Partitions()


def result_of(lines: list[str], scope: str) -> LintResult:
    """Return what a check says of its findings: a line for each."""
    return LintResult(int(bool(lines)), "".join(f"{line}\n" for line in lines), "", scope)


@rule(desc="Check the style of pages")
async def check_pages(request: PageStyleRequest.Batch[str, Any]) -> LintResult:
    contents = await Get(DigestContents, PathGlobs(request.elements))
    lines = []
    for file in contents:
        lines += pages.findings(file.path, file.content.decode())
    return result_of(lines, PageStyle.options_scope)


@rule(desc="Check docstrings of what packages export")
async def check_reference(request: ReferenceRequest.Batch[str, Any]) -> LintResult:
    contents = await Get(DigestContents, PathGlobs([*request.elements, reference.EXPORTS]))
    lines = reference.findings({file.path: file.content for file in contents})
    return result_of(lines, Reference.options_scope)


@rule(desc="Check the sizes of rooms")
async def check_sizes(request: SizesRequest.Batch[str, Any]) -> LintResult:
    (table,) = await Get(DigestContents, PathGlobs(request.elements))
    text = table.content.decode()
    code = await Get(DigestContents, PathGlobs([f"{room}/**" for room in read_table(text)]))
    files = {file.path: file.content for file in code if COUNTED.search(file.path)}
    return result_of(too_large(text, files), Sizes.options_scope)


def rules() -> list[Any]:
    requests = (PageStyleRequest, ReferenceRequest, SizesRequest)
    return [*collect_rules(), *(rule for request in requests for rule in request.rules())]
