"""Aggregate statistics of the training episodes: tallied per shard, joined exactly.

Tallies are integers and stored values, so the joined statistics do not depend on how the rows were cut into shards or in which order
these were finished.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schema import vocab
from schema.version import DATASET_VERSION

COUNTED: Final = ("scenario", "op", "impl", "gpu", "arch", "dtype", "kind", "status")
QUANTILES: Final = {"min": 0.0, "p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "max": 1.0}
_ORDER: Final = {
    "scenario": vocab.SCENARIOS,
    "op": vocab.OPS,
    "impl": vocab.IMPLS,
    "gpu": vocab.GPUS,
    "arch": vocab.ARCHS,
    "dtype": vocab.DTYPES,
    "kind": vocab.KINDS,
    "status": vocab.STATUSES,
}
_REWARD_UNITS: Final = 10**12
"""Rewards are summed as whole picounits: sums of floats would depend on their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of some rows."""

    episodes: int
    messages: int
    specialists: int
    tries: int
    elapsed_ds: int
    """Sum of `elapsed_s`, in tenths of a second."""
    rewards: int
    """Sum of all rewards, in units of 1e-12."""
    counts: Mapping[str, Counter[str]]
    speedups: Mapping[str, npt.NDArray[np.float64]]
    """Speedups of the episodes of each op."""
    elapsed_s: npt.NDArray[np.float64]


def tally(table: pa.Table) -> Tally:
    """Count the rows of a table of episodes."""
    messages, agents = elements(table, "messages"), elements(table, "agents")
    counts = {name: _counts(table[name] if name in table.schema.names else messages.field(name)) for name in COUNTED}
    ops = table["op"]
    elapsed = table["elapsed_s"].to_numpy()
    return Tally(
        episodes=table.num_rows,
        messages=len(messages),
        specialists=pc.sum(table["n_agents"]).as_py(),
        tries=pc.sum(agents.field("tries")).as_py(),
        elapsed_ds=int(np.rint(elapsed * 10).astype(np.int64).sum()),
        rewards=sum(np.rint(messages.field("reward").to_numpy() * _REWARD_UNITS).astype(np.int64).tolist()),
        counts=counts,
        speedups={op: table["speedup"].filter(pc.equal(ops, op)).to_numpy() for op in counts["op"]},
        elapsed_s=elapsed,
    )


def summarise(tallies: Sequence[Tally]) -> dict[str, Any]:
    """The content of `stats.json`: JSON-able, in a fixed order, from at least one tally."""
    episodes = sum(t.episodes for t in tallies)
    messages = sum(t.messages for t in tallies)
    rewards = sum(t.rewards for t in tallies) / _REWARD_UNITS
    counts = {name: _ordered(name, sum((t.counts[name] for t in tallies), Counter())) for name in COUNTED}
    speedups = {op: _joined(t.speedups[op] for t in tallies if op in t.speedups) for op in counts["op"]}
    return {
        "dataset_version": DATASET_VERSION,
        "split": "train",
        "episodes": episodes,
        "messages": messages,
        "mean_messages": round(messages / episodes, 3),
        "mean_specialists": round(sum(t.specialists for t in tallies) / episodes, 3),
        "tries": sum(t.tries for t in tallies),
        "counts": counts,
        "reward": {"total": round(rewards, 6), "mean_per_episode": round(rewards / episodes, 6)},
        "speedup": _quantiles(_joined(speedups.values())),
        "speedup_by_op": {op: _quantiles(values) for op, values in speedups.items()},
        "elapsed_s": {
            "mean": round(sum(t.elapsed_ds for t in tallies) / 10 / episodes, 3),
            **_quantiles(_joined(t.elapsed_s for t in tallies)),
        },
    }


def elements(table: pa.Table, column: str) -> pa.StructArray:
    """The elements of a list column of all rows, end to end."""
    lists = table[column].combine_chunks()
    return cast("pa.StructArray", cast("pa.ListArray", lists).flatten())


def _counts(values: pa.Array | pa.ChunkedArray) -> Counter[str]:
    return Counter({item["values"]: item["counts"] for item in pc.value_counts(values.drop_null()).to_pylist()})


def _ordered(name: str, counter: Counter[str]) -> dict[str, int]:
    return {word: counter[word] for word in _ORDER[name] if counter[word]}


def _joined(parts: Iterable[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return np.concatenate(list(parts))


def _quantiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
    """Quantiles by nearest rank: each is a stored value, so no arithmetic rounds it."""
    points = np.quantile(values, list(QUANTILES.values()), method="inverted_cdf")
    return dict(zip(QUANTILES, points.tolist(), strict=True))
