"""Pants goals over Ruff: ``lint`` runs ``ruff check``, ``fmt`` (and so ``lint``) ``ruff format``.

Pants 2.17 has a Ruff backend of its own, but it predates ``ruff check`` and ``ruff format``. Here
Ruff comes at the version that ``requirements.txt`` pins, like every other requirement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pants.backend.python.target_types import ConsoleScript, PythonSourceField
from pants.backend.python.util_rules.interpreter_constraints import InterpreterConstraints
from pants.backend.python.util_rules.pex import PexRequest, VenvPex, VenvPexProcess
from pants.backend.python.util_rules.pex_from_targets import GlobalRequirementConstraints
from pants.backend.python.util_rules.pex_requirements import PexRequirements
from pants.core.goals.fmt import FmtResult, FmtTargetsRequest
from pants.core.goals.lint import LintResult, LintTargetsRequest
from pants.core.util_rules.partitions import PartitionerType
from pants.core.util_rules.source_files import SourceFiles, SourceFilesRequest
from pants.engine.fs import Digest, MergeDigests, PathGlobs, Snapshot
from pants.engine.process import FallibleProcessResult
from pants.engine.rules import Get, collect_rules, rule
from pants.engine.target import FieldSet
from pants.option.option_types import SkipOption
from pants.option.subsystem import Subsystem

CONFIG_FILE = "pyproject.toml"


class Ruff(Subsystem):
    options_scope = "ruff"
    name = "Ruff"
    help = "The Ruff linter and formatter (https://docs.astral.sh/ruff)."

    skip = SkipOption("lint", "fmt")


@dataclass(frozen=True)
class RuffFieldSet(FieldSet):
    required_fields = (PythonSourceField,)

    source: PythonSourceField


class RuffCheckRequest(LintTargetsRequest):
    field_set_type = RuffFieldSet
    tool_subsystem = Ruff
    partitioner_type = PartitionerType.DEFAULT_SINGLE_PARTITION


class RuffFormatRequest(FmtTargetsRequest):
    field_set_type = RuffFieldSet
    tool_subsystem = Ruff
    partitioner_type = PartitionerType.DEFAULT_SINGLE_PARTITION

    @classmethod
    def _tool_id(cls) -> str:
        return "ruff-format"


@dataclass(frozen=True)
class RuffRun:
    subcommand: str
    sources: Snapshot


@rule
async def run_ruff(
    run: RuffRun, constraints: GlobalRequirementConstraints
) -> FallibleProcessResult:
    ruff = await Get(
        VenvPex,
        PexRequest(
            output_filename="ruff.pex",
            internal_only=True,
            requirements=PexRequirements(
                ["ruff"],
                constraints_strings=(str(constraint) for constraint in constraints),
                description_of_origin="the Ruff plugin",
            ),
            interpreter_constraints=InterpreterConstraints(["CPython>=3.11,<3.14"]),
            main=ConsoleScript("ruff"),
        ),
    )
    config = await Get(Digest, PathGlobs([CONFIG_FILE]))
    inputs = await Get(Digest, MergeDigests((run.sources.digest, config)))
    return await Get(
        FallibleProcessResult,
        VenvPexProcess(
            ruff,
            argv=(run.subcommand, "--no-cache", f"--config={CONFIG_FILE}", *run.sources.files),
            input_digest=inputs,
            output_files=run.sources.files,
            description=f"Run ruff {run.subcommand} on {len(run.sources.files)} files",
        ),
    )


@rule(desc="Lint with ruff check")
async def ruff_check(request: RuffCheckRequest.Batch[RuffFieldSet, Any]) -> LintResult:
    sources = await Get(
        SourceFiles, SourceFilesRequest(field_set.source for field_set in request.elements)
    )
    result = await Get(FallibleProcessResult, RuffRun("check", sources.snapshot))
    return LintResult.create(request, result, strip_chroot_path=True)


@rule(desc="Format with ruff format")
async def ruff_format(request: RuffFormatRequest.Batch) -> FmtResult:
    result = await Get(FallibleProcessResult, RuffRun("format", request.snapshot))
    return await FmtResult.create(request, result, strip_chroot_path=True)


def rules() -> list[Any]:
    return [*collect_rules(), *RuffCheckRequest.rules(), *RuffFormatRequest.rules()]
