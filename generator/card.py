"""The README of a build: YAML that tells `datasets` and viewers where the Parquet lies and of which types it is, then prose for people.

The prose is the template `dataset_card.md`; every number and table in it is computed from the build or from the contract, so nothing in
it can drift. The YAML goes through the library's own classes and has plain types only, which datasets 3.6 reads as well as 5.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Final

import pyarrow as pa
from datasets import DatasetInfo, Features, Split, SplitDict, SplitInfo, Version
from datasets.info import DatasetInfosDict
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCardData

from generator import columns, preview, proof, showcase
from generator.errors import DataError
from generator.figures import Figure
from generator.gpus import GPUS
from generator.ops import OPS
from generator.ops.base import Op
from generator.release import Release
from generator.show import ABRIDGED
from schema import arrow, vocab
from schema.version import DATASET_VERSION

TEMPLATE: Final = Path(__file__).parents[1] / "dataset_card.md"
_SIZES: Final = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_VALIDATION: Final = (
    "- `train` and `validation` share tasks and sources but no episode: validation measures how well a policy fits these tasks, not how it "
    "generalises.\n"
)
_SCENARIOS: Final = {
    "dispatch": "the lead splits variants across workers, merges the best, redirects the others to it",
    "parallel_sweep": "each worker owns a slice of the strongest variant's parameters; a leaderboard; the top two refine",
    "pipeline": "proposer, reviewer, verifier and tuner in a chain, climbing from the weakest variant to the strongest",
    "campaign": "a fleet over variants and parameters; a verifier re-benches the leaders before each merge",
}


def features(config: str) -> Features:
    """The Hugging Face features of a config, derived from its Arrow schema."""
    return Features.from_arrow_schema(arrow.CONFIGS[config])


def render(manifest: Mapping[str, Any], stats: Mapping[str, Any], row: Mapping[str, Any], figures: Sequence[Figure] = ()) -> str:
    """The whole README of a build.

    Args:
        manifest: Of the build.
        stats: Of the build.
        row: The campaign to show whole, see `showcase.pick`.
        figures: Pictures that lie beside the README, see `figures.draw`.

    Raises:
        DataError: The template asks for something that is not computed.
    """
    try:
        text = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(_fields(manifest, stats) | _shown(stats, row, figures))
    except (KeyError, ValueError) as error:
        raise DataError("the card template does not fit", str(error), "the fields that generator/card.py computes", "mend it") from error
    return f"---\n{metadata(manifest)}\n---\n{text}"


def metadata(manifest: Mapping[str, Any]) -> DatasetCardData:
    """The YAML header: `configs` and `dataset_info` of every config the build has."""
    episodes = sum(split["rows"] for split in manifest["configs"]["default"].values())
    card = DatasetCardData(
        pretty_name="kernelswarm: multi-agent kernel-optimisation episodes",
        license="apache-2.0",
        language=["en", "code"],
        task_categories=["reinforcement-learning", "text-generation"],
        tags=["synthetic", "multi-agent", "cuda", "triton", "gpu-kernels", "performance"],
        size_categories=[next((name for limit, name in _SIZES if episodes < limit), "n>1M")],
    )
    infos(manifest).to_dataset_card_data(card)
    configs(manifest).to_dataset_card_data(card)
    return card


def tag_name(manifest: Mapping[str, Any]) -> str:
    """Name of the published tag: `v<version>` for the default release, `v<version>-<digest8>` for any other."""
    plain = manifest["release"] == Release().key()
    return f"v{manifest['dataset_version']}" + ("" if plain else f"-{manifest['digest'][:8]}")


def infos(manifest: Mapping[str, Any]) -> DatasetInfosDict:
    """Features and exact split sizes of each config."""
    return DatasetInfosDict({config: _info(config, splits) for config, splits in manifest["configs"].items()})


def configs(manifest: Mapping[str, Any]) -> MetadataConfigs:
    """Where the files of each split lie."""
    return MetadataConfigs(
        {
            config: {
                "data_files": [{"split": split, "path": f"{config}/{split}-*.parquet"} for split in splits],
                **({"default": True} if config == "default" else {}),
            }
            for config, splits in manifest["configs"].items()
        }
    )


def _info(config: str, splits: Mapping[str, Any]) -> DatasetInfo:
    found = SplitDict(dataset_name="kernelswarm")
    for name, split in splits.items():
        found.add(SplitInfo(name=str(Split(name)), num_bytes=split["arrow_bytes"], num_examples=split["rows"], dataset_name="kernelswarm"))
    return DatasetInfo(
        features=features(config),
        splits=found,
        config_name=config,
        version=Version(DATASET_VERSION),
        download_size=sum(split["bytes"] for split in splits.values()),
        dataset_size=sum(split["arrow_bytes"] for split in splits.values()),
    )


def _fields(manifest: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, str]:
    """Everything the template may name."""
    counts, speedup = stats["counts"], stats["speedup"]
    played = [op for op in OPS if op.name in counts["op"]]
    results = {status: count for status, count in counts["status"].items() if status != "baseline"}
    return {
        "version": DATASET_VERSION,
        "digest": manifest["digest"],
        "tag": tag_name(manifest),
        "command": _command(manifest["release"]),
        "release": _release(manifest["release"]),
        "episodes": f"{stats['episodes']:,}",
        "messages": f"{stats['messages']:,}",
        "mean_messages": f"{stats['mean_messages']:.1f}",
        "mean_specialists": f"{stats['mean_specialists']:.1f}",
        "tries": f"{stats['tries']:,}",
        "ops": str(len(counts["op"])),
        "gpus": str(len(counts["gpu"])),
        "gpu_list": ", ".join(counts["gpu"]),
        "impl_list": " and ".join(f"{sum(op.impl == impl for op in played)} {impl}" for impl in counts["impl"]),
        "speedup_median": f"{speedup['median']:.2f}",
        "speedup_p10": f"{speedup['p10']:.2f}",
        "speedup_p90": f"{speedup['p90']:.2f}",
        "hours": f"{stats['elapsed_s']['min'] / 3600:.1f} to {stats['elapsed_s']['max'] / 3600:.1f}",
        "tasks": f"{sum(split['rows'] for split in manifest['configs'].get('holdout', {}).values()):,}",
        "first_rows": str(preview.ROWS),
        "preview_kb": f"{preview.MAX_BYTES // 1000}",
        "specialists": f"{min(least for least, _ in vocab.SPECIALISTS.values())} to {max(most for _, most in vocab.SPECIALISTS.values())}",
        "kinds": str(len(vocab.KINDS)),
        "scenarios": str(len(counts["scenario"])),
        "abridged": str(ABRIDGED),
        "boards": ", ".join(f"{gpu.board} (`{gpu.name}`)" for gpu in GPUS if gpu.name in counts["gpu"]),
        "bugs": str(sum(len(variant.bugs) for op in played for variant in op.variants)),
        "variants": str(sum(len(op.variants) for op in played)),
        "validation_note": _VALIDATION if "validation" in manifest["configs"]["default"] else "",
        "splits_table": _splits(manifest),
        "episode_columns": _columns(arrow.EPISODES, columns.EPISODE),
        "agent_columns": _columns(arrow.AGENT, columns.AGENT),
        "message_columns": _columns(arrow.MESSAGE, columns.MESSAGE),
        "task_columns": _columns(arrow.HOLDOUT, columns.TASK),
        "kinds_table": _kinds(counts["kind"]),
        "rewards_table": _rewards(results),
        "scenarios_table": _scenarios(counts["scenario"]),
        "ops_table": _ops(played, stats),
        "axes": ", ".join(f"`{axis}`" for axis in vocab.AXES),
        "tunables": ", ".join(f"`{name}`" for name in vocab.TUNABLES),
    }


def _shown(stats: Mapping[str, Any], row: Mapping[str, Any], figures: Sequence[Figure]) -> dict[str, str]:
    """The campaign that is shown, the pictures, and what was compiled and run."""
    pictures = {Path(figure.name).stem: f"![{figure.alt}]({figure.name})\n" for figure in figures}
    played = [op for op in OPS if op.name in stats["counts"]["op"]]
    return {
        "campaign_id": row["episode_id"],
        "campaign_summary": showcase.summary(row),
        "campaign_short": showcase.transcript(row, full=False),
        "campaign_whole": showcase.transcript(row, full=True),
        "proof": proof.sentence(proof.gather(played)),
        **{f"figure_{name}": pictures.get(name, "") for name in ("speedup", "outcomes", "campaign")},
    }


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _splits(manifest: Mapping[str, Any]) -> str:
    rows = [
        (f"`{config}`", f"`{name}`", f"{split['rows']:,}", len(split["shards"]), f"{split['bytes'] / 1e6:.1f} MB")
        for config, splits in manifest["configs"].items()
        for name, split in splits.items()
    ]
    return _table(("config", "split", "rows", "files", "size"), rows)


def _columns(fields: Iterable[pa.Field], meanings: Mapping[str, str]) -> str:
    rows = [(f"`{field.name}`", _type(field.type), "yes" if field.nullable else "", meanings[field.name]) for field in fields]
    return _table(("column", "type", "may be null", "meaning"), rows)


def _type(kind: pa.DataType) -> str:
    if isinstance(kind, pa.ListType):
        return f"list of {_type(kind.value_type)}"
    return {"double": "float64"}.get(str(kind), str(kind)) if not isinstance(kind, pa.StructType) else "struct"


def _kinds(counts: Mapping[str, int]) -> str:
    rows = [
        (f"`{kind}`", ", ".join(payload.senders), _carried(payload), payload.meaning, f"{counts.get(kind, 0):,}")
        for kind, payload in vocab.PAYLOADS.items()
    ]
    return _table(("kind", "sent by", "carries", "meaning", "in `train`"), rows)


def _carried(payload: vocab.Payload) -> str:
    return ", ".join([f"`{name}`" for name in payload.required] + [f"`{name}` where it applies" for name in payload.optional])


def _rewards(results: Mapping[str, int]) -> str:
    total = sum(results.values())
    rules = {"kept": "min(1, log2(prev_best / time_ms))", **{status: f"{reward:g}" for status, reward in vocab.FIXED_REWARDS.items()}}
    rows = [(f"`{status}`", f"`{rules[status]}`", f"{count:,}", f"{count / total:.1%}") for status, count in results.items()]
    return _table(("status of a `result`", "reward", "in `train`", "share"), rows)


def _scenarios(counts: Mapping[str, int]) -> str:
    rows = [(f"`{name}`", "{}-{}".format(*vocab.SPECIALISTS[name]), _SCENARIOS[name], f"{count:,}") for name, count in counts.items()]
    return _table(("scenario", "specialists", "how the team works", "in `train`"), rows)


def _ops(played: Iterable[Op], stats: Mapping[str, Any]) -> str:
    rows = []
    for op in played:
        speedup = stats["speedup_by_op"][op.name]
        variants = ", ".join(f"`{variant.name}`" for variant in op.variants)
        rows.append((f"`{op.name}`", op.impl, op.dtype, variants, f"{speedup['median']:.2f}x ({speedup['p10']:.2f}-{speedup['p90']:.2f})"))
    return _table(("op", "impl", "dtype", "variants, weakest first", "median speedup (p10-p90)"), rows)


def _release(key: Mapping[str, Any]) -> str:
    filters = [f"{name}: {', '.join(key[name])}" for name in ("ops", "gpus", "scenarios") if key[name]]
    return "; ".join([f"seed {key['seed']}", *filters])


def _command(key: Mapping[str, Any]) -> str:
    """The command that builds this release again."""
    words = [f"--episodes {key['episodes']}", f"--validation {key['validation']}", f"--seed {key['seed']}"]
    for option, name in (("--op", "ops"), ("--gpu", "gpus"), ("--scenario", "scenarios")):
        words += [f"{option} {value}" for value in key[name]]
    return " ".join(["python -m generator build", *words])
