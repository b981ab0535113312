"""Aggregate statistics of the training episodes: tallied per shard, joined exactly.

Tallies are integers and stored values, so the joined statistics do not depend on how the rows were cut into shards or in which order
these were finished.
"""

import math
from array import array
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
_ORDER: Final = vocab.WORDS | {"kind": vocab.KINDS, "status": vocab.STATUSES}
_NUMBERS: Final = ("episodes", "messages", "specialists", "tries", "elapsed_ds", "rewards")
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


def to_json(tally: Tally) -> dict[str, Any]:
    """A tally ready for JSON; floats keep their bits."""
    numbers = {name: getattr(tally, name) for name in _NUMBERS}
    speedups = {op: values.tolist() for op, values in tally.speedups.items()}
    counts = {name: dict(sorted(counter.items())) for name, counter in tally.counts.items()}
    return {**numbers, "counts": counts, "speedups": speedups, "elapsed_s": tally.elapsed_s.tolist()}


def from_json(found: Any, rows: int) -> Tally:
    """The tally of `rows` rows that `to_json` made. Raises ValueError if it is not that."""
    if not isinstance(found, dict) or found.keys() != {*_NUMBERS, "counts", "speedups", "elapsed_s"}:
        raise ValueError("a tally has other entries")
    numbers = {name: _whole(found[name]) for name in _NUMBERS}
    counts = _known(found["counts"], COUNTED)
    counters = {name: Counter({word: _whole(n) for word, n in _known(counts[name], _ORDER[name]).items()}) for name in COUNTED}
    speedups = {op: _floats(values) for op, values in _known(found["speedups"], vocab.OPS).items()}
    tally = Tally(**numbers, counts=counters, speedups=speedups, elapsed_s=_floats(found["elapsed_s"]))
    if not rows == tally.episodes == len(tally.elapsed_s) == sum(map(len, speedups.values())) or speedups.keys() != counters["op"].keys():
        raise ValueError("a tally is of another number of rows")
    return tally


def _known(found: Any, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(found, dict) or not set(found) <= set(names):
        raise ValueError("a tally has unknown names")
    return found


def _whole(found: Any) -> int:
    if type(found) is not int or abs(found) >= 2**63:
        raise ValueError("a tally has a count that is none")
    return found


def _floats(found: Any) -> npt.NDArray[np.float64]:
    if not isinstance(found, list) or not all(type(value) is float and math.isfinite(value) for value in found):
        raise ValueError("a tally has values that are no numbers")
    return np.array(found, dtype=np.float64)


class Totals:
    """Tallies joined one by one; holds 16 bytes an episode, for the quantiles."""

    def __init__(self) -> None:
        self._numbers = dict.fromkeys(_NUMBERS, 0)
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in COUNTED}
        self._speedups: dict[str, array[float]] = {}
        self._elapsed = array("d")

    def add(self, tally: Tally) -> None:
        for name in _NUMBERS:
            self._numbers[name] += getattr(tally, name)
        for name, counter in self._counts.items():
            counter.update(tally.counts[name])
        for op, values in tally.speedups.items():
            self._speedups.setdefault(op, array("d")).frombytes(values.astype(np.float64).tobytes())
        self._elapsed.frombytes(tally.elapsed_s.astype(np.float64).tobytes())

    def summary(self) -> dict[str, Any]:
        """The content of `stats.json`: JSON-able, in a fixed order, from at least one tally."""
        numbers = self._numbers
        episodes, messages, rewards = numbers["episodes"], numbers["messages"], numbers["rewards"] / _REWARD_UNITS
        counts = {name: _ordered(name, self._counts[name]) for name in COUNTED}
        speedups = {op: np.frombuffer(self._speedups[op], dtype=np.float64) for op in counts["op"]}
        return {
            "dataset_version": DATASET_VERSION,
            "split": "train",
            "episodes": episodes,
            "messages": messages,
            "mean_messages": round(messages / episodes, 3),
            "mean_specialists": round(numbers["specialists"] / episodes, 3),
            "tries": numbers["tries"],
            "counts": counts,
            "reward": {"total": round(rewards, 6), "mean_per_episode": round(rewards / episodes, 6)},
            "speedup": _quantiles(np.concatenate(list(speedups.values()))),
            "speedup_by_op": {op: _quantiles(values) for op, values in speedups.items()},
            "elapsed_s": {
                "mean": round(numbers["elapsed_ds"] / 10 / episodes, 3),
                **_quantiles(np.frombuffer(self._elapsed, dtype=np.float64)),
            },
        }


def summarise(tallies: Iterable[Tally]) -> dict[str, Any]:
    """The content of `stats.json`, from at least one tally."""
    totals = Totals()
    for found in tallies:
        totals.add(found)
    return totals.summary()


def elements(table: pa.Table, column: str) -> pa.StructArray:
    """The elements of a list column of all rows, end to end."""
    lists = table[column].combine_chunks()
    return cast("pa.StructArray", cast("pa.ListArray", lists).flatten())


def _counts(values: pa.Array | pa.ChunkedArray) -> Counter[str]:
    return Counter({item["values"]: item["counts"] for item in pc.value_counts(values.drop_null()).to_pylist()})


def _ordered(name: str, counter: Counter[str]) -> dict[str, int]:
    return {word: counter[word] for word in _ORDER[name] if counter[word]}


def _quantiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
    """Quantiles by nearest rank: each is a stored value, so no arithmetic rounds it."""
    points = np.quantile(values, list(QUANTILES.values()), method="inverted_cdf")
    return dict(zip(QUANTILES, points.tolist(), strict=True))
