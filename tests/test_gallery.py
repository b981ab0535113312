"""The gallery that is committed is the one that the registry and its evidence give."""

import importlib
import sys
from pathlib import Path

from generator.ops import OPS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
gallery = importlib.import_module("gallery")


def test_the_gallery_is_up_to_date():
    text = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    assert text == "\n".join(gallery.gallery()) + "\n", "run make gallery"


def test_every_variant_has_its_row_in_each_table():
    text = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    for op in OPS:
        part = text.split(f"## {op.name}\n")[1].split("\n## ")[0]
        for variant in op.variants:
            rows = [line for line in part.splitlines() if line.startswith(f"| `{variant.name}` |")]
            assert len(rows) == (1 if variant.flaw else 1 + len(op.shapes) + 1)
