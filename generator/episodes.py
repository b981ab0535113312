"""From (seed, split, index) to rows: plays campaigns and builds Arrow tables on the schema.

`build_range` is a pure function of its arguments: the unit of work of every engine. Episodes append to plain lists; lists become arrays
once per range, and the rules of the contract are checked on the finished table.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from generator.errors import InputError
from generator.gpus import GPUS
from generator.log import Log, Message
from generator.ops import OPS
from generator.ops.base import Params
from generator.release import MAX_EPISODES, Cell, Release, cell_positions, cells
from generator.rng import Dice, stream_key
from generator.scenarios import SCENARIOS
from generator.stage import Stage
from generator.task import landscape
from generator.team import Agent, assemble
from schema import rules
from schema.arrow import AGENT, EPISODES, MESSAGE, PARAMS, SHAPE
from schema.version import DATASET_VERSION


@dataclass(frozen=True, slots=True)
class Episode:
    """One campaign, played."""

    index: int
    cell: Cell
    stage: Stage
    seconds: list[float]
    episode_id: str


def play(seed: int, split: str, index: int) -> Episode:
    """Plays one episode; nothing but the arguments feeds it."""
    streams = {name: Dice(stream_key("kernelswarm", seed, split, name), index) for name in ("plan", "play", "noise", "prose")}
    repeat, position = divmod(index, len(cells()))
    cell = cells()[position]
    land = landscape(cell.task)
    lead, team = assemble(cell.scenario, index // len(SCENARIOS), streams["plan"])
    stage = Stage(land, lead, team, streams["play"], streams["noise"], streams["prose"])
    SCENARIOS[cell.scenario](stage)
    return Episode(index, cell, stage, stage.finish(streams["plan"]), _episode_id(cell, stage.log, split, repeat))


def _episode_id(cell: Cell, log: Log, split: str, repeat: int) -> str:
    suffix = {"train": f"-r{repeat}" if repeat else "", "validation": f"-v{repeat or ''}"}[split]
    return f"{cell.task.task_id}_{cell.scenario}_{len(log.messages)}{suffix}"


def build_range(release: Release, split: str, start: int, stop: int) -> pa.Table:
    """Rows `start` to `stop` of a split of a release, on `schema.arrow.EPISODES`. Raises schema.rules.RuleError if any breaks a rule."""
    return _checked([play(release.seed, split, release.index(split, i)) for i in range(start, stop)], release.seed)


def regenerate(episode_id: str, seed: int = 0) -> pa.Table:
    """The row with this id, made anew. Raises InputError if no episode of the seed has exactly this id."""
    split, index = _locate(episode_id)
    episode = play(Release(seed=seed).seed, split, index)
    if episode.episode_id != episode_id:
        raise InputError(
            f"no episode of seed {seed} has this id", episode_id, f"this cell's is {episode.episode_id}", "check id and --seed"
        )
    return _checked([episode], seed)


_ID: Final = re.compile(
    rf"(?P<task>(?:{'|'.join(op.name for op in OPS)})_(?:{'|'.join(gpu.name for gpu in GPUS)})_[A-Z0-9=,]+)"
    rf"_(?P<scenario>{'|'.join(SCENARIOS)})_[1-9][0-9]{{0,5}}(?:-r(?P<train>[1-9][0-9]{{0,11}})|-(?P<v>v)(?P<validation>[1-9][0-9]{{0,11}})?)?"
)


def _locate(episode_id: str) -> tuple[str, int]:
    """Split and index that an id names."""
    match = _ID.fullmatch(episode_id)
    position = cell_positions().get((match["task"], match["scenario"])) if match else None
    if match is None or position is None:
        raise InputError(
            "unknown episode id", episode_id, "{op}_{gpu}_{shape}_{scenario}_{messages}[-rN|-vN] of a training task", "see `list tasks`"
        )
    index = position + int(match["train"] or match["validation"] or 0) * len(cells())
    if index >= MAX_EPISODES:
        raise InputError("episode index out of range", index, f"below {MAX_EPISODES}", "use a smaller repeat")
    return "validation" if match["v"] else "train", index


def _checked(episodes: Sequence[Episode], seed: int) -> pa.Table:
    table = _table(episodes, seed)
    rules.check_episodes(table)
    return table


@dataclass(slots=True)
class _Distinct:
    """Dicts that repeat by the thousand, stored once; `take` spreads them over the rows."""

    kind: pa.StructType
    dicts: list[Params] = field(default_factory=list)
    _seen: dict[int, int] = field(default_factory=dict)

    def position(self, params: Params | None) -> int | None:
        if params is None:
            return None
        at = self._seen.get(id(params))
        if at is None:
            at = self._seen[id(params)] = len(self.dicts)
            self.dicts.append(params)
        return at

    def spread(self, values: Iterable[Params | None]) -> pa.Array:
        positions = [self.position(value) for value in values]
        return pa.array(self.dicts, self.kind).take(pa.array(positions, pa.int64()))


def _table(episodes: Sequence[Episode], seed: int) -> pa.Table:
    """One Arrow table of played episodes; every column typed by the schema, nothing inferred."""
    tasks = [e.cell.task for e in episodes]
    stages = [e.stage for e in episodes]
    columns: dict[str, Sequence[object] | pa.Array] = {
        "episode_id": [e.episode_id for e in episodes],
        "scenario": [e.cell.scenario for e in episodes],
        "n_agents": [len(s.team) for s in stages],
        "op": [t.op.name for t in tasks],
        "impl": [t.op.impl for t in tasks],
        "gpu": [t.gpu.name for t in tasks],
        "arch": [t.gpu.arch for t in tasks],
        "dtype": [t.op.dtype for t in tasks],
        "shape": _Distinct(SHAPE).spread([t.shape for t in tasks]),
        "baseline_ms": [s.baseline_ms for s in stages],
        "best_ms": [s.best_ms for s in stages],
        "speedup": [s.speedup for s in stages],
        "elapsed_s": [e.seconds[-1] for e in episodes],
        "agents": _agents([[s.lead, *s.team] for s in stages]),
        "num_messages": [len(e.seconds) for e in episodes],
        "messages": _messages(episodes),
        "task_id": [t.task_id for t in tasks],
        "floor_ms": [s.land.floor_ms for s in stages],
        "seed": [seed] * len(episodes),
        "index": [e.index for e in episodes],
        "dataset_version": [DATASET_VERSION] * len(episodes),
    }
    return pa.Table.from_arrays([_array(columns[f.name], f.type) for f in EPISODES], schema=EPISODES)


def _array(values: Sequence[object] | pa.Array, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _agents(teams: Sequence[Sequence[Agent]]) -> pa.Array:
    everyone = [agent for team in teams for agent in team]
    arrays = [pa.array([getattr(agent, f.name) for agent in everyone], f.type) for f in AGENT]
    return _lists(teams, pa.StructArray.from_arrays(arrays, fields=list(AGENT)), "agents")


def _messages(episodes: Sequence[Episode]) -> pa.Array:
    seconds = [t for e in episodes for t in e.seconds]
    columns = dict(zip(Message._fields, zip(*(m for e in episodes for m in e.stage.log.messages), strict=True), strict=True))
    columns["t"] = tuple(seconds)
    arrays = [_Distinct(PARAMS).spread(columns["params"]) if f.name == "params" else pa.array(columns[f.name], f.type) for f in MESSAGE]
    return _lists([e.seconds for e in episodes], pa.StructArray.from_arrays(arrays, fields=list(MESSAGE)), "messages")


def _lists(groups: Sequence[Sequence[object]], values: pa.Array, name: str) -> pa.Array:
    offsets = [0]
    for group in groups:
        offsets.append(offsets[-1] + len(group))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=EPISODES.field(name).type)
