"""Pants goal ``lint`` over pages and over the sizes of rooms, see `pages` and `sizes`."""

from __future__ import annotations

from typing import Any

from pants.core.goals.lint import LintFilesRequest, LintResult, Partitions
from pants.engine.fs import DigestContents, PathGlobs
from pants.engine.rules import Get, collect_rules, rule
from pants.option.option_types import SkipOption
from pants.option.subsystem import Subsystem
from repository.pages import PAGE, findings
from repository.sizes import COUNTED, TABLE, too_large


class PageStyle(Subsystem):
    options_scope = "page-style"
    name = "page style"
    help = "The style of pages, see docs/contributing.md."

    skip = SkipOption("lint")


class Sizes(Subsystem):
    options_scope = "sizes"
    name = "sizes"
    help = "The number of tokens of code of each room, see docs/contributing.md."

    skip = SkipOption("lint")


class PageStyleRequest(LintFilesRequest):
    tool_subsystem = PageStyle


class SizesRequest(LintFilesRequest):
    tool_subsystem = Sizes


@rule
async def partition_pages(
    request: PageStyleRequest.PartitionRequest, subsystem: PageStyle
) -> Partitions[str, Any]:
    pages = [] if subsystem.skip else [file for file in request.files if PAGE.fullmatch(file)]
    return Partitions.single_partition(pages) if pages else Partitions()


@rule
async def partition_code(
    request: SizesRequest.PartitionRequest, subsystem: Sizes
) -> Partitions[str, Any]:
    code = [] if subsystem.skip else [file for file in request.files if COUNTED.search(file)]
    return Partitions.single_partition(code) if code else Partitions()


@rule(desc="Check the style of pages")
async def check_pages(request: PageStyleRequest.Batch[str, Any]) -> LintResult:
    contents = await Get(DigestContents, PathGlobs(request.elements))
    found = [line for file in contents for line in findings(file.path, file.content.decode())]
    text = "".join(f"{line}\n" for line in found)
    return LintResult(int(bool(found)), text, "", PageStyle.options_scope)


@rule(desc="Check the sizes of rooms")
async def check_sizes(request: SizesRequest.Batch[str, Any]) -> LintResult:
    contents = await Get(DigestContents, PathGlobs([*request.elements, TABLE]))
    files = {file.path: file.content for file in contents}
    found = too_large(files.pop(TABLE).decode(), files)
    text = "".join(f"{line}\n" for line in found)
    return LintResult(int(bool(found)), text, "", Sizes.options_scope)


def rules() -> list[Any]:
    return [*collect_rules(), *PageStyleRequest.rules(), *SizesRequest.rules()]
