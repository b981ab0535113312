"""The command line. It parses, calls, and prints; every decision is made elsewhere.

Results go to stdout, progress to stderr. Exit codes: 0 ok, 1 data or disk, 2 usage, 130 interrupted. An error is one line on stderr:
`error: what, value, allowed, fix`.
"""

import enum
import json
import os
import platform
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
from generator.errors import DataError, InputError

if TYPE_CHECKING:
    from generator import build as building

OK: Final = 0
DATA: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Simulate multi-agent GPU-kernel-optimisation campaigns and write them as a typed dataset.",
)

Seed = Annotated[int, typer.Option(help="Seed of the release, 0 and up.")]


class Registry(enum.StrEnum):
    """What `list` can list."""

    ops = "ops"
    gpus = "gpus"
    variants = "variants"
    tasks = "tasks"


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
        return _fail(f"cannot read or write, got {str(error)!r}, allowed: a disk with room and permission, free some or change --out", DATA)
    except DataError as error:
        return _fail(str(error), DATA)
    except ValueError as error:
        if not _breaks_a_rule(error):
            raise
        return _fail(f"the generator broke a rule of the contract, got {str(error)!r}, allowed: none broken, please report it", DATA)
    if code == INTERRUPTED:
        typer.echo("interrupted: nothing half written carries a shard's name; the same command with --overwrite starts over", err=True)
    return code if isinstance(code, int) else OK


@app.callback()
def _kernelswarm() -> None:
    """Show every subcommand even if there is only one."""


@app.command()
def build(
    out: Annotated[Path, typer.Option(help="Folder to write: new, empty, or an earlier build with --overwrite.")] = Path("kernelswarm"),
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
) -> None:
    """Build a release as Parquet with card, manifest and statistics.

    Example: python -m generator build --out kernelswarm --workers 2
    """
    from generator import build as building
    from generator.release import Release

    started = time.perf_counter()
    release = Release(
        seed=seed, episodes=episodes, validation=validation, ops=tuple(op or ()), gpus=tuple(gpu or ()), scenarios=tuple(scenario or ())
    )
    request = building.Request(
        out=out, release=release, workers=_cores() if workers is None else workers, shard_size=shard_size, jsonl=jsonl, overwrite=overwrite
    )
    with _progress() as progress:
        outcome = building.build(request, progress)
    _print_outcome(out, outcome, time.perf_counter() - started)


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
def list_(what: Annotated[Registry, typer.Argument(help="What to list.")]) -> None:
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
def version() -> None:
    """Print the versions of package, data and Python."""
    from generator.manifest import package_version
    from schema.version import DATASET_VERSION

    typer.echo(f"kernelswarm {package_version()}, dataset {DATASET_VERSION}, Python {platform.python_version()}")


def _print_outcome(out: Path, outcome: "building.Outcome", seconds: float) -> None:
    """The summary of a build: a table whatever stdout is, and one line."""
    from generator import listing

    _print_rows(*listing.files(outcome.manifest), plain=False)
    rows = sum(split["rows"] for split in outcome.manifest["configs"]["default"].values())
    if outcome.state == "built":
        typer.echo(
            f"{out}: built {rows:,} episodes in {seconds:.1f} s ({rows / seconds:,.0f} a second), digest {outcome.manifest['digest'][:16]}"
        )
    else:
        typer.echo(f"{out}: already holds this release, {rows:,} episodes, digest {outcome.manifest['digest'][:16]}; no row was written")


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
def _progress() -> "Iterator[building.Progress]":
    """A bar on a terminal, a line per tenth of a stage elsewhere; both on stderr."""
    if not _is_terminal(sys.stderr):
        yield _plain_progress
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        stages: dict[str, TaskID] = {}

        def told(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            bars.update(stages[stage], completed=done)

        yield told


def _plain_progress(stage: str, done: int, total: int) -> None:
    typer.echo(f"{stage}: {done:,} of {total:,} rows", err=True)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _breaks_a_rule(error: Exception) -> bool:
    from schema.rules import RuleError

    return isinstance(error, RuleError)


def _fail(line: str, code: int) -> int:
    typer.echo(f"error: {' '.join(line.split())}", err=True)
    return code
