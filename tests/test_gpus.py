import dataclasses

import pytest

from generator.gpus import GPUS, Gpu
from schema import vocab

NUMBERS = [f.name for f in dataclasses.fields(Gpu) if f.name not in {"name", "board", "arch", "features", "sources", "kinds"}]


def test_registry_is_the_vocabulary():
    assert tuple(g.name for g in GPUS) == vocab.GPUS
    assert {g.arch for g in GPUS} == set(vocab.ARCHS)
    assert all(g.features <= set(vocab.FEATURES) for g in GPUS)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.name)
def test_every_number_has_a_source(gpu: Gpu):
    missing = [name for name in NUMBERS if getattr(gpu, name) is not None and name not in gpu.sources]
    assert not missing
    assert all(source.startswith(("https://", "derived", "estimated")) for source in gpu.sources.values())
    assert set(gpu.kinds) == set(NUMBERS)
    assert set(gpu.kinds.values()) <= {"datasheet", "measured", "fitted", "estimated"}


@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.name)
def test_what_a_board_sustains_is_within_what_it_reaches(gpu: Gpu):
    assert 0.6 < gpu.dram_sustained_fraction <= gpu.dram_fraction < 1
    assert gpu.dram_sustained <= gpu.dram_best
    assert gpu.max_mhz >= gpu.boost_mhz
    assert gpu.power_droop >= 0


def test_features_gate_as_the_archs_do():
    by_name = {g.name: g for g in GPUS}
    assert {n for n, g in by_name.items() if "wgmma" in g.features} == {"h100", "h200"}
    assert {n for n, g in by_name.items() if "tma" in g.features} == {"h100", "h200", "rtx_5090"}
    assert {n for n, g in by_name.items() if "fp4" in g.features} == {"rtx_5090"}
    assert all("cp_async" in g.features for g in GPUS)
    assert all((g.fp8_tflops is not None) == ("fp8" in g.features) for g in GPUS)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.name)
def test_rates_are_dense_and_add_up(gpu: Gpu):
    flops_per_clock = gpu.fp16_tflops * 1e12 / (gpu.sm_count * gpu.boost_mhz * 1e6)
    assert min(abs(flops_per_clock / power - 1) for power in (512, 1024, 2048, 4096)) < 0.03  # per clock and SM, fp32 accumulate
    assert gpu.int8_tops / gpu.fp16_tflops == pytest.approx(4 if gpu.name == "rtx_5090" else 2, rel=0.01)


def test_h200_differs_from_h100_in_memory_only():
    h100, h200 = GPUS[0], GPUS[1]
    same = ("arch", "features", "sm_count", "boost_mhz", "max_mhz", "l2_bytes", "fp16_tflops", "fp8_tflops", "int8_tops", "fp32_tflops")
    assert all(getattr(h100, name) == getattr(h200, name) for name in same)
    assert h200.dram_best > 1.3 * h100.dram_best
