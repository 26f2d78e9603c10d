"""Pants goal ``lint`` over pages: what `page_style.checker` finds in READMEs and docs."""

from __future__ import annotations

from typing import Any

from page_style.checker import PAGE, findings
from pants.core.goals.lint import LintFilesRequest, LintResult, Partitions
from pants.engine.fs import DigestContents, PathGlobs
from pants.engine.rules import Get, collect_rules, rule
from pants.option.option_types import SkipOption
from pants.option.subsystem import Subsystem


class PageStyle(Subsystem):
    options_scope = "page-style"
    name = "page style"
    help = "The style of pages, see docs/contributing.md."

    skip = SkipOption("lint")


class PageStyleRequest(LintFilesRequest):
    tool_subsystem = PageStyle


@rule
async def partition_pages(
    request: PageStyleRequest.PartitionRequest, subsystem: PageStyle
) -> Partitions[str, Any]:
    pages = [] if subsystem.skip else [file for file in request.files if PAGE.fullmatch(file)]
    return Partitions.single_partition(pages) if pages else Partitions()


@rule(desc="Check the style of pages")
async def check_pages(request: PageStyleRequest.Batch[str, Any]) -> LintResult:
    contents = await Get(DigestContents, PathGlobs(request.elements))
    found = [line for file in contents for line in findings(file.path, file.content.decode())]
    text = "".join(f"{line}\n" for line in found)
    return LintResult(int(bool(found)), text, "", PageStyle.options_scope)


def rules() -> list[Any]:
    return [*collect_rules(), *PageStyleRequest.rules()]
