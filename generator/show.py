"""One campaign as text for people: the row's facts, the team, and the transcript with sources abridged."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

ABRIDGED: Final = 3
"""Lines of a source shown unless all are asked for."""


def campaign(row: Mapping[str, Any], full: bool = False) -> str:
    """The whole campaign of a row of `default`, one line or more per message."""
    return "\n".join([*_facts(row), "", *_team(row["agents"]), "", *_timeline(row["messages"], full)])


def _facts(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["episode_id"]
    yield f"{row['scenario']}: {row['op']} ({row['impl']}, {row['dtype']}) on {row['gpu']} ({row['arch']}), {_assignments(row['shape'])}"
    times = f"{row['baseline_ms']:g} -> {row['best_ms']:g} ms, {row['speedup']:.2f}x, floor {row['floor_ms']:g} ms"
    yield f"{times}; {row['n_agents']} specialists, {row['num_messages']} messages, {_clock(row['elapsed_s'])}"
    yield f"seed {row['seed']}, index {row['index']}, dataset {row['dataset_version']}"


def _team(agents: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("agent", "role", "skill", "tries", "kept", "best ms")
    rows = [
        (a["id"], a["role"], f"{a['skill']:.3f}", str(a["tries"]), str(a["kept"]), "-" if a["best_ms"] is None else f"{a['best_ms']:g}")
        for a in agents
    ]
    return aligned([head, *rows])


def _timeline(messages: Sequence[Mapping[str, Any]], full: bool) -> Iterator[str]:
    for number, message in enumerate(messages):
        sender = message["agent"] if message["to"] is None else f"{message['agent']} -> {message['to']}"
        yield f"{number:>4}  {_clock(message['t'])}  {sender:<12} {message['kind']:<11} {_payload(message)}".rstrip()
        text = message["content"].splitlines()
        cut = message["kind"] == "candidate" and not full and len(text) > ABRIDGED
        yield from (f"{'':16}{line}".rstrip() for line in (text[:ABRIDGED] if cut else text))
        if cut:
            yield f"{'':16}... {len(text) - ABRIDGED} more lines (--full shows them)"


def _payload(message: Mapping[str, Any]) -> str:
    """What a message carries beside its text, as `name=value` words."""
    params = message["params"]
    words = {name: message[name] for name in ("reply_to", "variant", "status", "time_ms", "passed", "max_rel_err")}
    parts = [f"{name}={value}" for name, value in words.items() if value is not None]
    if params is not None:
        parts.append(_assignments(params))
    if message["reward"]:
        parts.append(f"reward={message['reward']:+g}")
    return " ".join(parts)


def _assignments(struct: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in struct.items() if value is not None)


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of equal columns, two spaces apart."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
