import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator import costmodel, facts
from generator.gpus import BY_NAME, GPUS, Gpu
from generator.ops import OPS
from generator.ops.base import Demand, Op, Shape, Variant, Work

PAIRS = [(op, gpu) for op in OPS for gpu in GPUS]
IDS = [f"{op.name}-{gpu.name}" for op, gpu in PAIRS]

demands = st.builds(
    Demand,
    blocks=st.integers(1, 10**6),
    threads=st.sampled_from([32, 64, 128, 256, 512, 1024]),
    registers=st.integers(16, 255),
    smem_per_block=st.integers(0, 99_000),
    dram_bytes=st.integers(1, 10**10),
    reread_bytes=st.integers(0, 10**10),
    footprint_bytes=st.integers(0, 10**9),
    inflight_per_block=st.integers(32, 10**5),
    flops=st.integers(0, 10**13),
    efficiency=st.floats(0.1, 1.0),
    alu_ops=st.integers(0, 10**11),
    sfu_ops=st.integers(0, 10**10),
    lsu_ops=st.integers(0, 10**9),
    leak=st.floats(0.0, 1.0),
    launches=st.integers(1, 4),
    spilled=st.integers(0, 200),
    unit=st.sampled_from(["fp32", "dp4a", "mma_fp16", "mma_int8", "wgmma_fp16"]),
    chain_ns=st.floats(0, 1e5),
    turn_ns=st.floats(0, 1e5),
    tail_ns=st.floats(0, 1e5),
)
gpus = st.sampled_from(GPUS)


def work_of(demand: Demand) -> Work:
    return Work(bytes=int(demand.dram_bytes), flops=int(demand.flops), math="fp32")


def price(op: Op, variant: Variant, gpu: Gpu, shape: Shape) -> costmodel.Price:
    """All points of a variant, as compiled."""
    return costmodel.price(gpu, facts.demand(op, variant, shape, gpu.arch, variant.points), op.work(shape))


def ms(gpu: Gpu, demand: Demand, work: Work | None = None) -> float:
    return float(costmodel.price(gpu, demand, work or work_of(demand)).ms)


@pytest.mark.parametrize("value", [1.0, 0.1234567, 123456.75, 9.9999999e-5, 1e-12, 2.5e9, 0.0, np.inf])
def test_significant_is_seven_digits(value: float):
    assert costmodel.significant(value) == float(f"{value:.7g}")


@given(st.floats(1e-9, 1e9))
@settings(max_examples=500)
def test_significant_agrees_with_the_printed_form(x: float):
    assert float(costmodel.significant(x)) == pytest.approx(float(f"{x:.7g}"), rel=2e-7)
    once = costmodel.significant(x)
    assert costmodel.significant(once) == once
    assert float(once) == float(f"{float(once):.7g}")


@given(gpus, demands)
@settings(max_examples=300)
def test_no_time_is_below_the_floor(gpu: Gpu, demand: Demand):
    time = ms(gpu, demand)
    assert time >= costmodel.floor_ms(gpu, work_of(demand))
    assert np.isinf(time) or time >= float(costmodel.significant(demand.launches * gpu.launch_us * 1e-3))


@given(demands, st.floats(1.05, 3.0))
@settings(max_examples=300)
def test_more_bandwidth_is_never_slower(demand: Demand, factor: float):
    slow = BY_NAME["a100"]
    fast = dataclasses.replace(slow, dram_gbps=round(slow.dram_gbps * factor))
    assert ms(fast, demand) <= ms(slow, demand)


@given(gpus, demands, st.integers(1, 10**9))
def test_more_bytes_are_never_faster(gpu: Gpu, demand: Demand, extra: int):
    more = dataclasses.replace(demand, dram_bytes=demand.dram_bytes + extra)
    assert ms(gpu, more, work_of(demand)) >= ms(gpu, demand)


@given(gpus, demands, st.integers(2, 8))
def test_more_in_flight_is_never_slower(gpu: Gpu, demand: Demand, factor: int):
    more = dataclasses.replace(demand, inflight_per_block=demand.inflight_per_block * factor)
    assert ms(gpu, more) <= ms(gpu, demand)


@given(gpus, demands, st.integers(1, 10**9))
def test_more_rereads_are_never_faster(gpu: Gpu, demand: Demand, extra: int):
    more = dataclasses.replace(demand, reread_bytes=demand.reread_bytes + extra)
    assert ms(gpu, more) >= ms(gpu, demand)


@given(gpus, demands, st.sampled_from(["flops", "alu_ops", "sfu_ops", "lsu_ops"]), st.integers(1, 10**10))
def test_more_work_is_never_faster(gpu: Gpu, demand: Demand, field: str, extra: int):
    more = dataclasses.replace(demand, **{field: getattr(demand, field) + extra})
    assert ms(gpu, more, work_of(demand)) >= ms(gpu, demand)


@given(gpus, demands, st.sampled_from(["power_droop", "wave_us", "launch_us", "dram_latency_ns"]))
def test_a_worse_board_is_never_faster(gpu: Gpu, demand: Demand, field: str):
    worse = dataclasses.replace(gpu, **{field: getattr(gpu, field) * 2 + 1})
    assert ms(worse, demand) >= ms(gpu, demand)


@given(gpus, demands)
@settings(max_examples=300)
def test_terms_add_up_and_the_longest_binds(gpu: Gpu, demand: Demand):
    parts = costmodel.terms(gpu, demand)
    whole = parts.launch + parts.fill + parts.spill * (parts.longest + parts.leaked) + parts.turns
    assert float(parts.total) == pytest.approx(float(whole))
    assert float(parts.longest) == max(float(one) for one in parts.resources)
    assert float(parts.resources[int(costmodel.binding(parts))]) == float(parts.longest)
    assert float(parts.longest + parts.leaked) <= sum(float(one) for one in parts.resources) * (1 + 1e-12)


def test_tensor_cores_slow_down_under_power():
    h100 = BY_NAME["h100"]
    short, long = np.array([1e-6]), np.array([1.0])
    assert costmodel.drooped(h100, short) == pytest.approx(short, rel=1e-3)
    assert costmodel.drooped(h100, long) == pytest.approx(long * (1 + h100.power_droop), rel=1e-3)
    half = np.array([h100.droop_us * 1e-6])
    assert costmodel.drooped(h100, half) == pytest.approx(half * (1 + h100.power_droop / 2))


def test_mma_needs_eight_warps():
    assert costmodel.fed(np.array([4, 8, 16])).tolist() == pytest.approx([4 / 6 / 0.8, 1, 1])


def test_no_floor_violation_in_a_million_candidates():
    """Demands of every size drawn from a fixed sequence, on every board: none below the floor of its own bytes and flops."""
    count = 170_000
    draws = np.random.Generator(np.random.PCG64(7)).random((9, count))
    for gpu in GPUS:
        demand = Demand(
            blocks=1 + (draws[0] * 1e5).astype(np.int64),
            threads=32 * (1 + (draws[1] * 32).astype(np.int64)),
            registers=16 + (draws[2] * 240).astype(np.int64),
            smem_per_block=(draws[3] * 110_000).astype(np.int64),
            dram_bytes=1e3 + draws[4] ** 6 * 1e10,
            reread_bytes=draws[5] ** 6 * 1e10,
            inflight_per_block=32 + draws[6] * 1e5,
            flops=draws[7] ** 8 * 1e13,
            unit="wgmma_fp16" if "wgmma" in gpu.features else "mma_fp16",
            efficiency=1.0,
            leak=draws[8],
        )
        floor = costmodel.floor_seconds(gpu, demand.dram_bytes, demand.flops, "fp16") * 1e3
        times = costmodel.terms(gpu, demand).total * 1e3
        assert (times >= floor * (1 - 1e-12)).all()  # before the gate already


def test_no_floor_violation_in_a_million_candidates_of_all_ops():
    """Random candidates of every variant, shape and board the project has."""
    draws, priced = np.random.Generator(np.random.PCG64(11)), 0
    for op, gpu in PAIRS:
        for shape in (*op.shapes, op.heldout):
            floor = costmodel.floor_ms(gpu, op.work(shape))
            for variant in (v for v in op.variants if v.usable(gpu.features)):
                columns = variant.columns()
                at = draws.integers(0, len(next(iter(columns.values()))), 1200)
                times = costmodel.price(
                    gpu, variant.demand(shape, {name: values[at] for name, values in columns.items()}), op.work(shape)
                ).ms
                assert (times >= floor).all()
                priced += len(times)
    assert priced > 1_000_000


@pytest.mark.parametrize(
    ("gpu", "published"),
    [("h100", (0.1819, 0.3503, 0.7001)), ("h200", (0.1315, 0.2480, 0.5032))],  # aiconfigurator, best clean library
)
def test_flash_decode_is_within_ten_percent_of_published(gpu: str, published: tuple[float, ...]):
    op = next(op for op in OPS if op.name == "flash_decode")
    for shape, time in zip(op.shapes, published, strict=True):
        best = min(price(op, v, BY_NAME[gpu], shape).ms.min() for v in op.variants if v.usable(BY_NAME[gpu].features))
        assert best == pytest.approx(time, rel=0.1)


def test_arrays_price_as_scalars_do():
    values = {"threads": np.array([64, 128, 1024]), "dram_bytes": np.array([10**6, 10**8, 10**9])}
    common = {"blocks": 500, "registers": 40, "inflight_per_block": 4096}
    together = costmodel.price(BY_NAME["h100"], Demand(**common, **values), Work(bytes=1, flops=1, math="fp32")).ms
    alone = [
        ms(BY_NAME["h100"], Demand(**common, threads=int(t), dram_bytes=int(b)), Work(bytes=1, flops=1, math="fp32"))
        for t, b in zip(*values.values(), strict=True)
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "smem", "blocks"),
    [
        ("a100", 256, 32, 0, 8),  # 2048 threads / 256
        ("a100", 256, 128, 0, 2),  # 65536 / (128 registers x 256 threads)
        ("a100", 256, 129, 0, 1),  # 129 registers allocate 136
        ("a100", 32, 16, 0, 32),  # block limit
        ("a10", 32, 16, 0, 16),
        ("rtx_5090", 1024, 32, 0, 1),  # 1536 threads an SM
        ("a100", 128, 32, 100_000, 1),  # 167,936 / 101,024
        ("h100", 128, 32, 73_728, 3),  # 233,472 / 74,752
        ("a10", 128, 32, 101_376, 1),
        ("a10", 128, 32, 101_377, 0),  # over the opt-in limit
        ("h100", 1024, 65, 0, 0),  # 72 x 1024 registers exceed the file
        ("h100", 2048, 16, 0, 0),
    ],
)
def test_occupancy_by_hand(gpu: str, threads: int, registers: int, smem: int, blocks: int):
    assert costmodel.occupancy(BY_NAME[gpu], threads, registers, smem) == blocks


def test_floor_by_hand():
    # 8 heads-of-KV example: 1 GiB over 3350 GB/s x 0.967
    assert costmodel.floor_ms(BY_NAME["h100"], Work(bytes=2**30, flops=1, math="fp16")) == pytest.approx(
        2**30 / (3350e9 * 0.967) * 1e3, rel=1e-6
    )
    # compute: 2 x 4096^3 at 989.4 TFLOPS x 1980/1830
    gemm = Work(bytes=1, flops=2 * 4096**3, math="fp16")
    assert costmodel.floor_ms(BY_NAME["h100"], gemm) == pytest.approx(2 * 4096**3 / (989.4e12 * 1980 / 1830) * 1e3, rel=1e-6)
    # nothing to do still takes a launch
    assert costmodel.floor_ms(BY_NAME["a10"], Work(bytes=1, flops=1, math="fp32")) == pytest.approx(1.10e-3)


def test_fp8_falls_back_to_fp16_where_there_is_none():
    assert costmodel.peak(BY_NAME["a100"], "fp8") == costmodel.peak(BY_NAME["a100"], "fp16")
    assert costmodel.peak(BY_NAME["h100"], "fp8") > 1.9 * costmodel.peak(BY_NAME["h100"], "fp16")


@pytest.mark.parametrize(("op", "gpu"), PAIRS, ids=IDS)
def test_landscapes_are_worth_exploring(op: Op, gpu: Gpu):
    """Over all shapes: finite baseline, 4-42x (75x for GEMM against tensor cores) above the best, best near but above the floor."""
    for shape in (*op.shapes, op.heldout):
        work = op.work(shape)
        usable = [v for v in op.variants if v.usable(gpu.features)]
        times = {v.name: price(op, v, gpu, shape).ms for v in usable}
        baseline = times[op.baseline.name][op.baseline.points.index(op.baseline.start)]
        best = min(t.min() for t in times.values())
        floor = costmodel.floor_ms(gpu, work)
        assert all((t >= floor).all() for t in times.values())
        assert 4 <= baseline / best <= (75 if "gemm" in op.name or "qkv" in op.name else 42), (shape, baseline / best)
        assert best > 1.01 * floor
        assert sum(np.isfinite(t).any() for t in times.values()) >= 2
