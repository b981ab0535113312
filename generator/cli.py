"""The command line. It parses, calls, and prints; every decision is made elsewhere.

Results go to stdout, progress to stderr. Exit codes: 0 ok, 1 data or disk, 2 usage, 3 Hub, 130 interrupted. An error is one line on stderr:
`error: what, value, allowed, fix`.
"""

import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from generator import usage
from generator.errors import DataError, HubError, InputError

if TYPE_CHECKING:
    from generator import build as building
    from generator import publication

OK: Final = 0
DATA: Final = 1
USAGE: Final = 2
HUB: Final = 3
INTERRUPTED: Final = 130

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Simulate multi-agent GPU-kernel-optimisation campaigns and write them as a typed dataset.",
)

Seed = Annotated[int, typer.Option(help="Seed of the release, 0 and up.")]
RepoId = Annotated[str | None, typer.Option(help="Dataset on the Hub, as NAME/kernelswarm; yours by default.")]
Private = Annotated[bool, typer.Option("--private", help="Make a new repository private; never write to a public one.")]
Revision = Annotated[str | None, typer.Option(help="Branch on the Hub, made if it is missing; main by default.")]
CreatePr = Annotated[bool, typer.Option("--create-pr", help="Open a pull request instead of changing the branch; sets no tag.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would change on the Hub, and change nothing.")]


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code. Never raises for bad input, bad data, a full disk or an interrupt."""
    try:
        code = typer.main.get_command(app)(list(arguments), prog_name="python -m generator", standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except usage.UsageError as error:
        return _fail(usage.line(error, arguments), USAGE)
    except InputError as error:
        return _fail(str(error), USAGE)
    except (BrokenPipeError, SystemExit):
        # The reader of stdout has gone, as in `| head`, which Typer takes for an exit; Python would complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except OSError as error:
        return _fail(f"cannot read or write, got {str(error)!r}, allowed: a disk with room and permission, free some, run it again", DATA)
    except DataError as error:
        return _fail(str(error), DATA)
    except HubError as error:
        return _fail(str(error), HUB)
    except ValueError as error:
        if not _breaks_a_rule(error):
            raise
        return _fail(f"the generator broke a rule of the contract, got {str(error)!r}, allowed: none broken, please report it", DATA)
    if code == INTERRUPTED:
        typer.echo(
            "interrupted: finished files are kept, half-written ones carry no shard's name; run the same command again to go on", err=True
        )
    return code if isinstance(code, int) else OK


@app.callback()
def _kernelswarm() -> None:
    """Show every subcommand even if there is only one."""


@app.command()
def build(
    out: Annotated[
        str, typer.Option(help="Folder or fsspec URL: new, empty, a half-built one, or any build with --overwrite.")
    ] = "kernelswarm",
    episodes: Annotated[int, typer.Option(help="Training episodes before filters, 1 and up.")] = 2400,
    validation: Annotated[int, typer.Option(help="Validation episodes before filters; 0 means no such split.")] = 240,
    seed: Seed = 0,
    op: Annotated[list[str] | None, typer.Option(help="Keep only episodes of this op; may be repeated. See `list ops`.")] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Keep only episodes on this GPU; may be repeated. See `list gpus`.")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help="Keep only episodes of this scenario; may be repeated.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; all cores by default. The bytes do not depend on it.")] = None,
    shard_size: Annotated[int, typer.Option(help="Episodes per Parquet file, 1 and up.")] = 400,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Write the original's JSONL layout as well, about 220 kB an episode.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a build that lies in --out, and nothing else.")] = False,
    engine: Annotated[str, typer.Option(help="Where shards are made: local, dask[:tcp://HOST:PORT], ray[:ADDRESS].")] = "local",
    slice_: Annotated[str | None, typer.Option("--slice", help="Make only every n-th shard from the i-th on, as i/n, from 0/n.")] = None,
    stall: Annotated[float, typer.Option(help="Seconds without a finished shard after which the run is given up.")] = 600,
    figures: Annotated[bool, typer.Option("--figures", help="Draw pictures for the card; needs the extra `figures`.")] = False,
    push: Annotated[bool, typer.Option("--push", help="Publish the build on the Hub, see the command push.")] = False,
    repo_id: RepoId = None,
    private: Private = False,
    revision: Revision = None,
    create_pr: CreatePr = False,
    dry_run: DryRun = False,
) -> None:
    """Build a release as Parquet with card, manifest and statistics. The same command again goes on with a build that was cut short.

    Example: python -m generator build --out kernelswarm --workers 2
    """
    from generator import build as building
    from generator.release import Release

    publish = _publication(push, Path(out), repo_id, private, revision, create_pr, jsonl, dry_run)
    release = Release(
        seed=seed, episodes=episodes, validation=validation, ops=tuple(op or ()), gpus=tuple(gpu or ()), scenarios=tuple(scenario or ())
    )
    request = building.Request(
        out=out,
        release=release,
        workers=_cores() if workers is None else workers,
        shard_size=shard_size,
        jsonl=jsonl,
        overwrite=overwrite,
        engine=engine,
        part=None if slice_ is None else _slice(slice_),
        stall=stall,
        figures=figures,
    )
    _build(request, publish)


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a build.")],
    repo_id: RepoId = None,
    private: Private = False,
    revision: Revision = None,
    create_pr: CreatePr = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Send the original's JSONL layout as well.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Publish a build on the Hub: one commit of what differs, then a tag. The token is that of HF_TOKEN or `hf auth login`.

    Example: python -m generator push kernelswarm --dry-run
    """
    request = _publication(True, folder, repo_id, private, revision, create_pr, jsonl, dry_run)
    if request is not None:
        _push(request)


@app.command()
def show(
    episode_id: Annotated[str, typer.Argument(help="Id of an episode, as in the column `episode_id`.")],
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the row as JSON, nulls included.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Print sources whole.")] = False,
) -> None:
    """Regenerate one campaign from its id and print it.

    Example: python -m generator show rmsnorm_h100_M=4096,N=4096_dispatch_57
    """
    from generator import show as showing
    from generator.episodes import regenerate

    row = regenerate(episode_id, seed).to_pylist()[0]
    typer.echo(json.dumps(row, ensure_ascii=False) if as_json else showing.campaign(row, full))


@app.command(name="list")
def list_(what: Annotated[usage.Registry, typer.Argument(help="What to list.")]) -> None:
    """List ops, GPUs, variants or tasks; tab-separated where stdout is no terminal."""
    from generator import listing

    _print_rows(*listing.listing(what.value))


@app.command()
def stats(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a build.")]) -> None:
    """Print the statistics of a build."""
    from generator import build as building
    from generator import listing

    manifest, totals = building.read(folder)
    _print_rows(*listing.files(manifest))
    typer.echo()
    _print_rows(*listing.summary(totals))


@app.command()
def check(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of a build, or any URL of one that fsspec can open.")],
    full: Annotated[bool, typer.Option("--full", help="Make every row again from its index, not one in 49.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    no_digests: Annotated[bool, typer.Option("--no-digests", help="Leave the digests of the manifest aside.")] = False,
    viewer: Annotated[bool, typer.Option("--viewer", help="Check instead what the Hub's viewer and readers of Parquet need.")] = False,
) -> int:
    """Derive every label of a build again; exit 1 if any differs.

    Example: python -m generator check kernelswarm
    """
    if viewer:
        return _check_viewer(Path(folder))
    from generator.check.run import check as run_check

    with _progress() as progress:
        report = run_check(folder, full=full, digests=not no_digests, progress=progress)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        _print_rows(*report.table())
        for line in report.lines():
            typer.echo(line)
    return OK if report.ok else DATA


@app.command()
def evidence(
    action: Annotated[usage.Action, typer.Argument(help="Make the tables, or make them again and compare.")],
    op: Annotated[list[str] | None, typer.Option(help="Only this op; may be repeated. All by default.")] = None,
) -> int:
    """Compile every source, run it on the CPU, and write or verify the tables of what was found; needs the extra `evidence`."""
    from generator.evidence import build as tables
    from generator.evidence.nvcc import ToolchainError
    from generator.ops import BY_NAME

    unknown = [name for name in op or () if name not in BY_NAME]
    if unknown:
        raise InputError("unknown op", unknown[0], ", ".join(BY_NAME), "pass --op with one of them")
    run = tables.build if action is usage.Action.build else tables.verify
    try:
        return DATA if run([BY_NAME[name] for name in op or BY_NAME]) else OK
    except ToolchainError as error:
        raise DataError("a compiler is missing", str(error), "the pinned versions", "install the extra `evidence`") from error


@app.command()
def explain(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task_id; see `list tasks`.")],
    variant: Annotated[str, typer.Option(help="One of the op's variants; see `list variants`.")],
    params: Annotated[str, typer.Option(help='Tunables, as "block_n=64 splits=8".')],
) -> None:
    """Print the terms of a candidate's modelled time, what bounds it, and how far it is from the floor."""
    from generator import explain as explaining

    typer.echo(explaining.text(explaining.explain(explaining.task_of(task), variant, explaining.params_of(params))))


@app.command()
def version() -> None:
    """Print the versions of package, data and Python."""
    from generator.manifest import package_version
    from schema.version import DATASET_VERSION

    typer.echo(f"kernelswarm {package_version()}, dataset {DATASET_VERSION}, Python {platform.python_version()}")


def _publication(
    push: bool, folder: Path, repo_id: str | None, private: bool, revision: str | None, create_pr: bool, jsonl: bool, dry_run: bool
) -> "publication.Request | None":
    """What is to be published, if anything. Raises InputError if the options do not go together."""
    given = {"--repo-id": repo_id, "--private": private, "--revision": revision, "--create-pr": create_pr, "--dry-run": dry_run}
    option = next((name for name, value in given.items() if value), None)
    if not push and option is not None:
        raise InputError(f"{option} goes with --push alone", option, "--push", "add --push or leave it out")
    if not push:
        return None
    from generator import publication

    return publication.Request(
        folder=folder, repo_id=repo_id, private=private, revision=revision, create_pr=create_pr, jsonl=jsonl, dry_run=dry_run
    )


def _build(request: "building.Request", publish: "publication.Request | None") -> None:
    from generator import build as building

    started = time.perf_counter()
    if publish is not None:
        from generator import hub

        hub.require_token()  # before a long build whose push would fail
    with _progress() as progress:
        outcome = building.build(request, progress)
    _print_outcome(str(request.out), outcome, time.perf_counter() - started)
    if publish is not None and outcome.manifest is not None:
        _push(publish)


def _push(request: "publication.Request") -> None:
    from generator import hub, listing, publication
    from generator.check.run import check as run_check

    publication.require_build(request.folder)
    hub.require_token()
    with _progress() as progress:
        report = run_check(str(request.folder), progress=progress)
    if not report.ok:
        raise DataError("labels do not follow from the rows", report.lines()[0], "what `build` wrote", "build it again with --overwrite")
    with _progress("bytes") as progress:
        outcome = hub.push(request, progress)
    _print_rows(*listing.changes(outcome.plan), plain=False)
    typer.echo(listing.pushed(outcome))


def _check_viewer(folder: Path) -> int:
    from generator import viewer

    findings = viewer.check(folder)
    for line in findings or viewer.previews(folder):
        typer.echo(str(line))
    typer.echo(f"{folder}: {len(findings)} findings")
    return DATA if findings else OK


def _print_outcome(out: str, outcome: "building.Outcome", seconds: float) -> None:
    """The summary of a build: a table whatever stdout is, and one line."""
    from generator import listing

    files = f"{outcome.shards:,} of {outcome.planned:,} files are there, {outcome.made:,} of them made now in {seconds:.1f} s"
    if outcome.manifest is None:
        typer.echo(f"{out}: {files}; the last slice, or the command without --slice, completes the build")
        return
    _print_rows(*listing.files(outcome.manifest), plain=False)
    rows = sum(split["rows"] for split in outcome.manifest["configs"]["default"].values())
    digest = outcome.manifest["digest"][:16]
    match outcome.state:
        case "built" if outcome.made == outcome.planned:
            typer.echo(f"{out}: built {rows:,} episodes in {seconds:.1f} s ({rows / seconds:,.0f} a second), digest {digest}")
        case "built":
            typer.echo(f"{out}: completed {rows:,} episodes, digest {digest}; {files}")
        case "repaired":
            typer.echo(f"{out}: held this release, {rows:,} episodes, digest {digest}; {outcome.made:,} damaged files were made again")
        case _:
            typer.echo(f"{out}: already holds this release, {rows:,} episodes, digest {digest}; no row was written")


def _print_rows(head: Sequence[str], rows: Sequence[Sequence[str]], plain: bool | None = None) -> None:
    from generator import listing

    if not _is_terminal(sys.stdout) if plain is None else plain:
        typer.echo(listing.tab_separated(head, rows))
        return
    table = Table(*head, box=SIMPLE, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if _is_terminal(sys.stdout) else 120, markup=False, highlight=False).print(table)


@contextmanager
def _progress(unit: str = "rows") -> "Iterator[building.Progress]":
    """A bar on a terminal, a line per tenth of a stage elsewhere; both on stderr."""
    if not _is_terminal(sys.stderr):
        yield lambda stage, done, total: typer.echo(f"{stage}: {done:,} of {total:,} {unit}", err=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        stages: dict[str, TaskID] = {}

        def told(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            bars.update(stages[stage], completed=done)

        yield told


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _slice(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
    if match is None:
        raise InputError("--slice is not valid", text, "i/n, such as 0/8 to 7/8", "pass both numbers")
    return int(match[1]), int(match[2])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _breaks_a_rule(error: Exception) -> bool:
    from schema.rules import RuleError

    return isinstance(error, RuleError)


def _fail(line: str, code: int) -> int:
    typer.echo(f"error: {' '.join(line.split())}", err=True)
    return code
