"""Memory traffic of C[M, N] = A[M, K] @ B[N, K]^T computed tile by tile: shared by the matrix products.

Blocks walk C in bands of tile rows. Those that run together read the same slices of A and B at nearly the same time, so DRAM gives
each slice once per patch of concurrent tiles, and L2 serves it to the others. Consecutive blocks ask for the slice they share (of B in
a band of several rows, else of A) together, and the request coalescer in front of L2 makes one request of two:
https://docs.nvidia.com/nsight-compute/ProfilingGuide/ (units, LRC).
"""

from dataclasses import dataclass

import numpy as np

from generator.ops.base import Column, Shape, ceil_div

WARPS_AT_ONCE = 1024
"""Warps taken to run together: eight on each multiprocessor of a mid-size board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Tiles of C and bytes of A and B over the whole grid, each `[candidates]`."""

    tiles: Column
    dram_bytes: Column
    """First reads of a slice by a patch of concurrent tiles."""
    reread_bytes: Column
    """Reads of the same slice by the rest of the patch, as L2 sees them."""
    window_rows: Column
    """Rows of A and B that a patch reads side by side."""


def traffic(s: Shape, element: int, block_m: Column, block_n: Column, warps: Column, band: Column) -> Traffic:
    """Traffic of tiles `block_m` x `block_n`, blocks of `warps` warps, bands of `band` tile rows, `element` bytes a number."""
    m, n, k = s["M"], s["N"], s["K"]
    tiles_m, tiles_n = ceil_div(m, block_m), ceil_div(n, block_n)
    running = np.maximum(WARPS_AT_ONCE // warps, 1)
    rows = np.minimum(np.maximum(band, running // tiles_n), tiles_m)
    columns = np.minimum(ceil_div(running, rows), tiles_n)
    first = (ceil_div(tiles_n, columns) * m + ceil_div(tiles_m, rows) * n) * k * element
    high = np.minimum(band, tiles_m) > 1
    asked_a, asked_b = np.where(high, tiles_n, ceil_div(tiles_n, 2)) * m, np.where(high, ceil_div(tiles_m, 2), tiles_m) * n
    return Traffic(
        tiles=tiles_m * tiles_n,
        dram_bytes=first,
        reread_bytes=np.maximum((asked_a + asked_b) * k * element - first, 0),
        window_rows=np.minimum(rows * block_m, m) + np.minimum(columns * block_n, n),
    )
