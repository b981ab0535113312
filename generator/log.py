"""The transcript a scenario writes: one tuple a message, in the column order of the messages table.

Times are in units of work until the campaign is over; only then is the pace known (see `Stage.finish`), and `t` in seconds follows.
"""

from typing import NamedTuple

from generator.ops.base import Params


class Message(NamedTuple):
    """One message without its time; the field order is that of `schema.arrow.MESSAGE`, `t` left out."""

    role: str
    agent: str
    kind: str
    content: str
    reward: float = 0.0
    to: str | None = None
    subtask: str | None = None
    reply_to: int | None = None
    variant: str | None = None
    params: Params | None = None
    status: str | None = None
    time_ms: float | None = None
    passed: bool | None = None
    max_rel_err: float | None = None


class Log:
    """Messages of one campaign and when they were sent, in units."""

    __slots__ = ("messages", "units")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.units: list[float] = []

    def add(self, at: float, message: Message) -> int:
        """Appends a message sent at `at` units; returns its index, which replies refer to."""
        self.messages.append(message)
        self.units.append(at)
        return len(self.messages) - 1
