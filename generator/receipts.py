"""One receipt per finished shard, in `.build/receipts/`: what lets any later run, on any engine, go on where this one stopped.

A shard is there if its receipt is whole, is of this build, and the file has the size and SHA-256 it names. Whatever else lies there, torn,
altered or somebody else's, counts as nothing and the shard is made anew, to the same bytes.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from generator import parquet, places, selftest, stats
from generator.digest import ROW_BYTES
from generator.parquet import Receipt, Shard

FOLDER: Final = ".build/receipts"

_HEX: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A shard that shall be there, of the build with this key."""

    shard: Shard
    key: str
    """Digest of the key of the build."""
    selftest: str
    """What `selftest.digest()` must be where the shard is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A shard that is there; `made` unless it was before."""

    name: str
    rows: int
    file_bytes: int
    made: bool


def ensure(job: Job) -> Done:
    """Make a shard and its receipt unless both are there and whole. Raises MismatchError where other bytes would be made."""
    selftest.require(job.selftest)
    place = places.place(job.shard.folder)
    receipt = read(job)
    made = receipt is None or place.sha256(receipt.name) != receipt.sha256
    if receipt is None or made:
        receipt = parquet.write_shard(job.shard)
        place.write(name(job.shard), _dump(receipt, job.key))
    return Done(name=receipt.name, rows=receipt.rows, file_bytes=receipt.file_bytes, made=made)


def name(shard: Shard) -> str:
    """Where the receipt of a shard lies: `.build/receipts/default-train-00000-of-00006.json`."""
    return f"{FOLDER}/{shard.name.replace('/', '-').removesuffix('.parquet')}.json"


def read(job: Job) -> Receipt | None:
    """The receipt of a shard whose file has its size; None if there is none that can be trusted."""
    place = places.place(job.shard.folder)
    data = place.read(name(job.shard))
    try:
        receipt = None if data is None else _load(data, job)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return receipt if receipt is not None and place.size(receipt.name) == receipt.file_bytes else None


def _dump(receipt: Receipt, key: str) -> bytes:
    body = {
        "key": key,
        "name": receipt.name,
        "rows": receipt.rows,
        "bytes": receipt.file_bytes,
        "arrow_bytes": receipt.arrow_bytes,
        "sha256": receipt.sha256,
        "row_digests": base64.b64encode(receipt.row_digests).decode(),
        "tally": None if receipt.tally is None else stats.to_json(receipt.tally),
    }
    return json.dumps({"sha256": _sha256(body), "receipt": body}).encode()


def _load(data: bytes, job: Job) -> Receipt:
    """Raises ValueError, KeyError or TypeError unless this is a receipt of the job's shard."""
    found = json.loads(data)
    body, shard = found["receipt"], job.shard
    if found["sha256"] != _sha256(body) or (body["key"], body["name"], body["rows"]) != (job.key, shard.name, shard.rows):
        raise ValueError("a receipt of something else")
    digests = base64.b64decode(body["row_digests"], validate=True)
    sizes = [body["bytes"], body["arrow_bytes"]]
    if len(digests) != ROW_BYTES * shard.rows or not all(type(size) is int and 0 < size < 2**63 for size in sizes):
        raise ValueError("a receipt of another size")
    if not isinstance(body["sha256"], str) or not _HEX.fullmatch(body["sha256"]):
        raise ValueError("a receipt without a digest")
    return Receipt(
        config=shard.config,
        split=shard.split,
        name=shard.name,
        rows=shard.rows,
        file_bytes=sizes[0],
        arrow_bytes=sizes[1],
        sha256=body["sha256"],
        row_digests=digests,
        tally=stats.from_json(body["tally"], shard.rows) if shard.split == "train" else None,
    )


def _sha256(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
