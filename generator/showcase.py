"""The campaign that the card shows whole, since viewers cut the cells of `messages`: a short one in which something also goes wrong."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from generator import show
from schema import vocab

FENCE: Final = "~~~~~~~~"
"""No message holds it."""

Read = Callable[[str], bytes]
"""Gives a file of the build."""


def pick(manifest: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """The training row to show: of the first row group, that with the least text among those in which a try failed, if any."""
    name = manifest["configs"]["default"]["train"]["shards"][0]["name"]
    with pq.ParquetFile(pa.BufferReader(read(name))) as file:
        table = file.read_row_group(0)
    messages = table["messages"].combine_chunks().flatten()
    rows = np.repeat(np.arange(len(table)), table["num_messages"].to_numpy())
    text = np.bincount(rows, pc.binary_length(messages.field("content")).to_numpy())
    failed = pc.is_in(messages.field("status"), pa.array(sorted(set(vocab.STATUSES) - set(vocab.RAN)))).to_numpy(zero_copy_only=False)
    text[np.bincount(rows, failed) == 0] += text.sum()
    row: dict[str, Any] = table.slice(int(text.argmin()), 1).to_pylist()[0]
    return row


def summary(row: Mapping[str, Any]) -> str:
    """What happens in a campaign, in a sentence."""
    statuses = [message["status"] for message in row["messages"] if message["kind"] == "result"]
    kept, tries = statuses.count("kept"), len(statuses) - 1
    return (
        f"A lead and {row['n_agents']} specialists (scenario `{row['scenario']}`) take `{row['op']}` on `{row['gpu']}` from "
        f"{row['baseline_ms']:g} to {row['best_ms']:g} ms, {row['speedup']:.2f}x, in {row['elapsed_s'] / 3600:.1f} simulated hours and "
        f"{row['num_messages']} messages; {kept} of {tries} candidates were kept."
    )


def transcript(row: Mapping[str, Any], full: bool) -> str:
    """The campaign as fenced text; sources are cut to a few lines unless `full`."""
    return f"{FENCE}text\n{show.campaign(row, full)}\n{FENCE}"
