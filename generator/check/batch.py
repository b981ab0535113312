"""One batch of episodes as plain lists, one entry a message, which replaying a transcript reads far faster than Arrow.

Words repeat and are decoded once a batch; sources are looked up once per distinct text.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from generator.check.library import Facts, Library, Source, facts, pack_column
from schema.rules import Mask, View


class Batch:
    """Rows of a split at `places`; every list is `[messages]` or `[rows]`, null is None."""

    def __init__(self, view: View, split: str, places: Sequence[int], library: Library) -> None:
        self.table = view.table
        self.split = split
        self.places = places
        self.first: list[int] = [*view.first.tolist(), len(view.messages)]
        self.first_agent: list[int] = [*view.first_agent.tolist(), len(view.agents)]
        self.ids = words(view.column("episode_id"))
        self.facts: list[Facts | None] = [facts(task_id) for task_id in words(view.column("task_id"))]
        self.kind = words(view.message("kind"))
        self.role = words(view.message("role"))
        self.agent = words(view.message("agent"))
        self.to = optional_words(view.message("to"))
        self.variant = optional_words(view.message("variant"))
        self.status = optional_words(view.message("status"))
        self.reply_to: list[int | None] = view.message("reply_to").to_pylist()
        self.time_ms: list[float | None] = view.message("time_ms").to_pylist()
        self.passed: list[bool | None] = view.message("passed").to_pylist()
        self.max_rel_err: list[float | None] = view.message("max_rel_err").to_pylist()
        self.reward: list[float] = view.message("reward").to_numpy().tolist()
        self.t: list[float] = view.message_numbers("t").tolist()
        self.params = _spread(view.message("params"))
        self._read_content(view.message("content"), view.is_kind("candidate"), library)
        self.agents: list[dict[str, object]] = view.agents.to_pylist()
        self.shape = pack_column(view.column("shape"))

    def _read_content(self, content: pa.StringArray, candidates: Mask, library: Library) -> None:
        """`content` of all but candidates; `source` and `text` (a number, equal for equal texts) of candidates."""
        encoded = content.filter(pa.array(candidates)).dictionary_encode()
        parsed = [library.source(text) for text in encoded.dictionary.to_pylist()]
        self.content: list[str | None] = [None] * len(content)
        self.text: list[int] = [-1] * len(content)
        self.source: list[Source | None] = [None] * len(content)
        for at, number in zip(np.flatnonzero(candidates).tolist(), encoded.indices.to_pylist(), strict=True):
            self.text[at] = number
            self.source[at] = parsed[number]
        others = content.filter(pa.array(~candidates)).to_pylist()
        for at, text in zip(np.flatnonzero(~candidates).tolist(), others, strict=True):
            self.content[at] = text

    def __len__(self) -> int:
        return len(self.ids)

    def messages(self, row: int) -> range:
        """Positions of the messages of a row."""
        return range(self.first[row], self.first[row + 1])

    def team(self, row: int) -> Sequence[dict[str, object]]:
        """The agents of a row."""
        return self.agents[self.first_agent[row] : self.first_agent[row + 1]]

    def target(self, row: int, at: int) -> int | None:
        """Position of the candidate that the message at a position replies to; None if it names none."""
        reply = self.reply_to[at]
        if reply is None or not 0 <= reply < at - self.first[row]:
            return None
        found = self.first[row] + reply
        return found if self.kind[found] == "candidate" else None

    def column(self, name: str) -> list[object]:
        """A column of the rows."""
        values: list[object] = self.table[name].to_pylist()
        return values

    def whole(self) -> Iterator[tuple[int, str, Facts | None]]:
        """Number, id and task of each row."""
        yield from zip(range(len(self)), self.ids, self.facts, strict=True)


def words(values: pa.Array) -> list[str]:
    """A string column without nulls as a list, each distinct word decoded once."""
    encoded = values.dictionary_encode()
    known: list[str] = encoded.dictionary.to_pylist()
    return [known[number] for number in encoded.indices.to_numpy(zero_copy_only=False).tolist()]


def optional_words(values: pa.Array) -> list[str | None]:
    """As `words`; null is None."""
    encoded = values.dictionary_encode()
    known: list[str | None] = [*encoded.dictionary.to_pylist(), None]
    return [known[number] for number in pc.fill_null(encoded.indices, len(known) - 1).to_numpy(zero_copy_only=False).tolist()]


def _spread(structs: pa.StructArray) -> list[bytes | None]:
    """Packed params of each message; None where it has none."""
    valid = pc.is_valid(structs)
    out: list[bytes | None] = [None] * len(structs)
    places = np.flatnonzero(valid.to_numpy(zero_copy_only=False)).tolist()
    for at, packed in zip(places, pack_column(structs.filter(valid)), strict=True):
        out[at] = packed
    return out
