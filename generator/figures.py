"""The card's pictures, drawn from the rows of the build: speedups, outcomes, and the course of one campaign. Needs matplotlib.

Each has an alternative text that says in numbers what the picture shows. The bytes depend on the version of matplotlib, so no digest
covers them.
"""

import importlib.util
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from generator.errors import InputError
from generator.showcase import Read
from schema import vocab

NAMES: Final = ("figures/speedup.png", "figures/outcomes.png", "figures/campaign.png")

_COLOURS: Final = {
    "kept": "#0072b2",
    "no_improvement": "#bbbbbb",
    "compile_error": "#e69f00",
    "wrong_result": "#d55e00",
    "unsupported_arch": "#cc79a7",
}
"""Told apart by colour-blind readers too: the palette of Okabe and Ito."""
_DPI: Final = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture of the card."""

    name: str
    png: bytes
    alt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """What the pictures need of all training rows."""

    speedups: Mapping[tuple[str, str], list[float]]
    """By op and GPU."""
    outcomes: Mapping[str, Counter[str]]
    """Statuses of the tries, by scenario."""


def check_available() -> None:
    """Raise InputError if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--figures needs matplotlib", "no matplotlib", "the extra `figures`", "run `pip install kernelswarm[figures]`")


def draw(manifest: Mapping[str, Any], read: Read, row: Mapping[str, Any]) -> tuple[Figure, ...]:
    """All pictures of a build; `row` is the campaign that the card shows."""
    totals = _totals(manifest, read)
    made = (_speedups(totals), _outcomes(totals), _campaign(row))
    return tuple(Figure(name=name, png=png, alt=alt) for name, (png, alt) in zip(NAMES, made, strict=True))


def _totals(manifest: Mapping[str, Any], read: Read) -> _Totals:
    speedups: dict[tuple[str, str], list[float]] = {}
    outcomes: dict[str, Counter[str]] = {}
    for shard in manifest["configs"]["default"]["train"]["shards"]:
        with pq.ParquetFile(pa.BufferReader(read(shard["name"]))) as file:
            table = file.read(columns=["op", "gpu", "speedup", "scenario", "num_messages", "messages.list.element.status"])
        for op, gpu, speedup in zip(*(table[name].to_pylist() for name in ("op", "gpu", "speedup")), strict=True):
            speedups.setdefault((op, gpu), []).append(speedup)
        statuses = table["messages"].combine_chunks().flatten().field("status")
        scenarios = table["scenario"].combine_chunks().take(pa.array(np.repeat(np.arange(len(table)), table["num_messages"].to_numpy())))
        for scenario in vocab.SCENARIOS:
            played = statuses.filter(pc.equal(scenarios, scenario)).drop_null()
            counted = {item["values"]: item["counts"] for item in pc.value_counts(played).to_pylist() if item["values"] != "baseline"}
            if counted:
                outcomes.setdefault(scenario, Counter()).update(counted)
    return _Totals(speedups=speedups, outcomes=outcomes)


def _canvas(width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes, outside pyplot, so that nothing global changes."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height), layout="constrained")
    return canvas, canvas.add_subplot()


def _png(canvas: Any) -> bytes:
    sink = io.BytesIO()
    canvas.savefig(sink, format="png", dpi=_DPI, metadata={"Software": None})
    return sink.getvalue()


def _speedups(totals: _Totals) -> tuple[bytes, str]:
    """Median speedup by op and GPU."""
    ops = [op for op in vocab.OPS if any(key[0] == op for key in totals.speedups)]
    gpus = [gpu for gpu in vocab.GPUS if any(key[1] == gpu for key in totals.speedups)]
    medians = np.full((len(ops), len(gpus)), np.nan)
    for (op, gpu), values in totals.speedups.items():
        medians[ops.index(op), gpus.index(gpu)] = np.median(values)
    canvas, axes = _canvas(1.6 + 0.95 * max(len(gpus), 3), 1.0 + 0.34 * max(len(ops), 3))
    image = axes.imshow(np.log2(medians), cmap="viridis", aspect="auto", vmin=0.0)
    axes.set_xticks(range(len(gpus)), gpus)
    axes.set_yticks(range(len(ops)), ops)
    axes.set_title("median speedup over the baseline")
    middle = np.nanmax(np.log2(medians)) / 2
    for (y, x), value in np.ndenumerate(medians):
        if not np.isnan(value):
            axes.text(x, y, f"{value:.2f}x", ha="center", va="center", color="white" if np.log2(value) < middle else "black", fontsize=8)
    canvas.colorbar(image, ax=axes, label="log2 of the speedup")
    low, high = (np.unravel_index(int(pick(medians)), medians.shape) for pick in (np.nanargmin, np.nanargmax))
    ends = [f"{ops[y]} on {gpus[x]} ({medians[y, x]:.2f}x)" for y, x in (low, high)]
    alt = f"Table of the median speedup of {len(ops)} ops on {len(gpus)} GPUs: from {ends[0]} to {ends[1]}."
    return _png(canvas), alt


def _outcomes(totals: _Totals) -> tuple[bytes, str]:
    """Shares of the statuses of all tries, by scenario."""
    scenarios = [scenario for scenario in vocab.SCENARIOS if scenario in totals.outcomes]
    canvas, axes = _canvas(7.5, 1.1 + 0.45 * len(scenarios))
    left = np.zeros(len(scenarios))
    sums = np.array([totals.outcomes[scenario].total() for scenario in scenarios])
    for status, colour in _COLOURS.items():
        share = np.array([totals.outcomes[scenario][status] for scenario in scenarios]) / sums
        axes.barh(scenarios, share, left=left, color=colour, label=status)
        left += share
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title("outcome of the tries")
    canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(_COLOURS), fontsize=8, frameon=False)
    kept = ", ".join(f"{scenario} {totals.outcomes[scenario]['kept'] / total:.0%}" for scenario, total in zip(scenarios, sums, strict=True))
    everything = sum(totals.outcomes.values(), Counter())
    rest = ", ".join(f"{everything[status] / sums.sum():.0%} {status}" for status in _COLOURS if status != "kept")
    alt = f"Bars of the outcomes of {sums.sum():,} tries by scenario. Kept: {kept}. Of all tries, {rest}."
    return _png(canvas), alt


def _campaign(row: Mapping[str, Any]) -> tuple[bytes, str]:
    """Times and failures of one campaign over its simulated hours."""
    results = [message for message in row["messages"] if message["kind"] == "result"]
    canvas, axes = _canvas(7.5, 3.6)
    ceiling = max(message["time_ms"] for message in results if message["time_ms"] is not None) * 1.25
    for status, colour in {"baseline": "black", **_COLOURS}.items():
        points = [(m["t"] / 3600, m["time_ms"] or ceiling) for m in results if m["status"] == status]
        if points:
            ran = status in vocab.RAN
            axes.scatter(*zip(*points, strict=True), color=colour, marker="o" if ran else "x", label=status, zorder=3)
    kept = [(m["t"] / 3600, m["time_ms"]) for m in results if m["status"] in ("baseline", "kept")]
    best = np.minimum.accumulate([time for _, time in kept])
    end = row["elapsed_s"] / 3600
    axes.step([*(t for t, _ in kept), end], [*best, best[-1]], where="post", color=_COLOURS["kept"], label="best so far")
    axes.axhline(row["floor_ms"], color="black", linestyle=":", label="floor")
    axes.set_yscale("log")
    axes.set_xlabel("simulated hours")
    axes.set_ylabel("ms (log), failures on top")
    axes.set_title(f"{row['scenario']}: {row['op']} on {row['gpu']}")
    axes.legend(fontsize=8, frameon=False, ncols=2)
    failed = sum(message["time_ms"] is None for message in results)
    alt = (
        f"Times of the {len(results)} results of one campaign over {end:.1f} simulated hours: from {row['baseline_ms']:g} ms down to "
        f"{row['best_ms']:g} ms, the floor is {row['floor_ms']:g} ms; {failed} candidates failed."
    )
    return _png(canvas), alt
