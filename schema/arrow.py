"""The Arrow schemas of the two tables: names, order, types and nullability are the contract.

Hugging Face `Features` are derived from these (they carry no nullability), never typed by hand. Integers are int64, reals float64;
structs are closed, so a shard can never change a type.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from schema import vocab


def _strict(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _optional_ints(names: Iterable[str]) -> pa.StructType:
    return pa.struct([pa.field(name, pa.int64()) for name in names])


def _list_of(item: pa.DataType) -> pa.ListType:
    return pa.list_(_strict("element", item))


SHAPE: Final = _optional_ints(vocab.AXES)
PARAMS: Final = _optional_ints(vocab.TUNABLES)

AGENT: Final = pa.struct(
    [
        _strict("id", pa.string()),
        _strict("role", pa.string()),
        _strict("skill", pa.float64()),
        _strict("tries", pa.int64()),
        _strict("kept", pa.int64()),
        pa.field("best_ms", pa.float64()),
    ]
)

MESSAGE: Final = pa.struct(
    [
        _strict("role", pa.string()),
        _strict("agent", pa.string()),
        _strict("kind", pa.string()),
        _strict("content", pa.string()),
        _strict("t", pa.float64()),
        _strict("reward", pa.float64()),
        pa.field("to", pa.string()),
        pa.field("subtask", pa.string()),
        pa.field("reply_to", pa.int64()),
        pa.field("variant", pa.string()),
        pa.field("params", PARAMS),
        pa.field("status", pa.string()),
        pa.field("time_ms", pa.float64()),
        pa.field("passed", pa.bool_()),
        pa.field("max_rel_err", pa.float64()),
    ]
)

EPISODES: Final = pa.schema(
    [
        _strict("episode_id", pa.string()),
        _strict("scenario", pa.string()),
        _strict("n_agents", pa.int64()),
        _strict("op", pa.string()),
        _strict("impl", pa.string()),
        _strict("gpu", pa.string()),
        _strict("arch", pa.string()),
        _strict("dtype", pa.string()),
        _strict("shape", SHAPE),
        _strict("baseline_ms", pa.float64()),
        _strict("best_ms", pa.float64()),
        _strict("speedup", pa.float64()),
        _strict("elapsed_s", pa.float64()),
        _strict("agents", _list_of(AGENT)),
        _strict("num_messages", pa.int64()),
        _strict("messages", _list_of(MESSAGE)),
        _strict("task_id", pa.string()),
        _strict("floor_ms", pa.float64()),
        _strict("seed", pa.int64()),
        _strict("index", pa.int64()),
        _strict("dataset_version", pa.string()),
    ]
)
"""Config `default`: one row is one campaign."""

HOLDOUT: Final = pa.schema(
    [
        _strict("task_id", pa.string()),
        _strict("op", pa.string()),
        _strict("impl", pa.string()),
        _strict("gpu", pa.string()),
        _strict("arch", pa.string()),
        _strict("dtype", pa.string()),
        _strict("shape", SHAPE),
        _strict("baseline_ms", pa.float64()),
        _strict("floor_ms", pa.float64()),
        _strict("best_known_ms", pa.float64()),
        _strict("best_known_speedup", pa.float64()),
        _strict("kind", pa.string()),
        _strict("prompt", pa.string()),
    ]
)
"""Config `holdout`: one row is one task never seen in `default`."""

CONFIGS: Final = {"default": EPISODES, "holdout": HOLDOUT}
