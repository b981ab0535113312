"""Tables for the command line: what there is to simulate, and what a build holds. Each is a head and rows of text."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from generator.gpus import GPUS
from generator.ops import OPS
from generator.release import held_out_shapes, held_out_triples, training_tasks
from generator.task import params_text, shape_text

if TYPE_CHECKING:
    from generator.publication import Outcome, Plan

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]

WHAT: Final = ("ops", "gpus", "variants", "tasks")


def listing(what: str) -> Rows:
    """The registry called `what`, one of `WHAT`."""
    return {"ops": _ops, "gpus": _gpus, "variants": _variants, "tasks": _tasks}[what]()


def _ops() -> Rows:
    rows = [
        (
            op.name,
            op.impl,
            op.dtype,
            " ".join(op.axes),
            str(len(op.variants)),
            " | ".join(shape_text(s) for s in op.shapes),
            shape_text(op.heldout),
        )
        for op in OPS
    ]
    return ("op", "impl", "dtype", "axes", "variants", "shapes", "held-out shape"), rows


def _gpus() -> Rows:
    rows = [(g.name, g.board, g.arch, " ".join(sorted(g.features)), str(g.sm_count), str(g.dram_gbps), f"{g.fp16_tflops:g}") for g in GPUS]
    return ("gpu", "board", "arch", "features", "SMs", "DRAM GB/s", "fp16 TFLOPS"), rows


def _variants() -> Rows:
    rows = [
        (op.name, v.name, " ".join(sorted(v.needs)) or "-", str(len(v.points)), str(len(v.bugs)), params_text(v.start), v.idea)
        for op in OPS
        for v in op.variants
    ]
    return ("op", "variant", "needs", "points", "bugs", "start", "idea"), rows


def _tasks() -> Rows:
    kinds = (("train", training_tasks()), ("unseen_triple", held_out_triples()), ("unseen_shape", held_out_shapes()))
    rows = [(t.task_id, t.op.name, t.gpu.name, shape_text(t.shape), kind) for kind, tasks in kinds for t in tasks]
    return ("task_id", "op", "gpu", "shape", "kind"), rows


def files(manifest: Mapping[str, Any]) -> Rows:
    """The splits of a build."""
    rows = [
        (config, name, f"{split['rows']:,}", str(len(split["shards"])), f"{split['bytes'] / 1e6:.2f}", split["digest"][:16])
        for config, splits in manifest["configs"].items()
        for name, split in splits.items()
    ]
    return ("config", "split", "rows", "files", "MB", "digest"), rows


def changes(plan: "Plan") -> Rows:
    """What a push changes in the repository, a file a row."""
    rows = [(what, file.name, f"{file.size / 1e6:.2f}") for what, files in (("add", plan.adds), ("change", plan.changes)) for file in files]
    return ("on the Hub", "file", "MB"), [*rows, *(("delete", name, "") for name in plan.deletes)]


def pushed(outcome: "Outcome") -> str:
    """What became of a push, in a line."""
    plan = outcome.plan
    counts = f"{len(plan.adds)} added, {len(plan.changes)} changed, {len(plan.deletes)} deleted, {plan.unchanged} unchanged"
    tag = f"tag {plan.tag}" if plan.tag else "no new tag"
    match outcome.state:
        case "planned":
            return f"{plan.repo_id}: dry run, nothing was changed; would be {counts}, {plan.bytes:,} bytes to {plan.revision}, {tag}"
        case "unchanged":
            return f"{plan.repo_id}: already holds this build, no commit was made, {tag}; {outcome.url}"
        case _:
            return f"{plan.repo_id}: pushed, {counts}, commit {str(outcome.commit)[:8]}, {tag}; {outcome.url}"


def summary(stats: Mapping[str, Any]) -> Rows:
    """The statistics of a build's training split, one name and value a row."""
    rows = [(name, f"{stats[name]:,}") for name in ("episodes", "messages", "mean_messages", "mean_specialists", "tries")]
    rows += [(f"reward {name}", f"{value:,}") for name, value in stats["reward"].items()]
    for name in ("speedup", "elapsed_s"):
        rows += [(f"{name} {at}", f"{value:,}") for at, value in stats[name].items()]
    for name, counts in stats["counts"].items():
        rows += [(f"{name} {word}", _share(count, counts)) for word, count in counts.items()]
    return ("statistic", "value"), rows


def _share(count: int, counts: Mapping[str, int]) -> str:
    return f"{count:,} ({count / sum(counts.values()):.1%})"


def tab_separated(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("\t".join(row) for row in (head, *rows))
