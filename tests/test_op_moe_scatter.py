"""moe_scatter: counted work, reference against plain loops, stable order, empty experts."""

import numpy as np
import numpy.typing as npt
import pytest

from generator import costmodel
from generator.gpus import BY_NAME
from generator.ops.moe_scatter import OP, once, reference, routing

M, K, E, N = 6, 2, 5, 3
IDS = np.array([[3, 0], [0, 3], [4, 3], [0, 4], [3, 0], [4, 0]], dtype=np.int32)  # experts 1 and 2 stay empty


def rows() -> npt.NDArray[np.float16]:
    return np.random.default_rng(1).standard_normal((M, N)).astype(np.float16)


def test_bytes_and_flops_of_a_small_shape() -> None:
    work = OP.work({"M": 512, "K": 8, "E": 256, "N": 7168})
    copied = 512 * 7168 * 2 + 512 * 8 * 7168 * 2  # x read once, K rows written a token, fp16
    indices = 512 * 8 * 4 + 512 * 8 * 4 + 257 * 4  # ids read; row map and E + 1 offsets written, int32
    assert work.bytes == copied + indices
    assert work.flops == 0  # a copy


def test_reference_is_the_grouping_written_out() -> None:
    x = rows()
    want, first, place = [], [0], [0] * (M * K)
    for e in range(E):
        for m in range(M):
            for k in range(K):
                if IDS[m, k] == e:
                    place[m * K + k] = len(want)
                    want.append(x[m].astype(np.float64))
        first.append(len(want))
    offsets, row_map = routing(IDS, E)
    assert offsets.tolist() == first
    assert row_map.tolist() == place
    assert np.array_equal(reference(x, IDS, E), np.stack(want))


def test_every_row_depends_on_its_token_alone() -> None:
    x = rows()
    _, row_map = routing(IDS, E)
    for m in range(M):
        other = x.copy()
        other[m] += np.float16(1)
        changed = reference(other, IDS, E) != reference(x, IDS, E)
        touched = row_map.reshape(M, K)[m]
        assert changed[touched].all()
        assert changed.sum() == K * N


def test_rows_depend_on_the_choice_of_experts() -> None:
    ids = IDS.copy()
    ids[2, 1] = 1  # the third pair of expert 3
    offsets, row_map = routing(ids, E)
    assert offsets.tolist() == [0, 5, 6, 6, 9, 12]
    assert row_map[2 * K + 1] == 5
    assert (reference(rows(), ids, E) != reference(rows(), IDS, E)).any()


def test_order_within_an_expert_is_that_of_the_tokens() -> None:
    offsets, row_map = routing(np.full((M, K), 2, dtype=np.int32), E)
    assert row_map.tolist() == list(range(M * K))
    assert offsets.tolist() == [0, 0, 0, M * K, M * K, M * K]


def test_row_map_is_a_permutation() -> None:
    ids = np.random.default_rng(2).integers(0, 40, (100, 4)).astype(np.int32)
    offsets, row_map = routing(ids, 40)
    assert sorted(row_map.tolist()) == list(range(400))
    placed = np.empty(400, dtype=np.int32)
    placed[row_map] = ids.reshape(-1)
    assert all((placed[offsets[e] : offsets[e + 1]] == e).all() for e in range(40))


def test_what_runs_once_is_spread_over_the_waves() -> None:
    assert once(900.0, 64, 256, 1.0) == pytest.approx(900.0)  # less than one wave
    assert once(900.0, 3072, 256, 0.6) == pytest.approx(900.0 / 0.6 / 3)  # 3072 * 256 threads are three waves of 128 * 2048


def test_a_gather_pays_where_l2_holds_x_and_costs_where_it_does_not() -> None:
    """Rows of x are read for each of their K places: from L2 on the RTX 5090, from DRAM on the A10."""
    shape = OP.shapes[0]
    best = {
        (gpu, v.name): costmodel.price(BY_NAME[gpu], v.demand(shape, v.columns()), OP.work(shape)).ms.min()
        for gpu in ("rtx_5090", "a10")
        for v in OP.variants
    }
    assert best["rtx_5090", "vec_gather"] < best["rtx_5090", "multi_block"]
    assert best["a10", "vec_gather"] > 1.2 * best["a10", "multi_block"]
