from collections import Counter

import pytest

from generator.errors import InputError
from generator.gpus import GPUS
from generator.ops import OPS
from generator.release import Release, cells, held_out_shapes, held_out_triples, training_tasks
from generator.scenarios import SCENARIOS


def test_held_out_triples():
    triples = held_out_triples()
    assert len({t.task_id for t in triples}) == len(triples) == 51
    assert set(Counter(t.op.name for t in triples).values()) == {3}
    per_gpu = Counter(t.gpu.name for t in triples)
    assert len(per_gpu) == 6
    assert min(per_gpu.values()) >= 5
    assert not {t.task_id for t in triples} & {t.task_id for t in training_tasks()}


def test_parts_of_a_held_out_triple_occur_in_training():
    seen = training_tasks()
    for t in held_out_triples():
        assert any(s.op is t.op and s.gpu is t.gpu for s in seen)
        assert any(s.op is t.op and s.shape == t.shape for s in seen)


def test_held_out_shapes_never_occur_in_training():
    assert len(held_out_shapes()) == 102
    assert not {(t.op.name, tuple(t.shape.items())) for t in held_out_shapes()} & {
        (t.op.name, tuple(t.shape.items())) for t in training_tasks()
    }


def test_cells_are_all_and_well_mixed():
    order = cells()
    assert len({(c.task.task_id, c.scenario) for c in order}) == len(order) == len(training_tasks()) * 4 == 1020
    for block in range(0, len(order), 68):
        assert len({(c.task.op.name, c.scenario) for c in order[block : block + 68]}) == 68
    assert [c.scenario for c in order[:8]] == [*SCENARIOS, *SCENARIOS]
    assert len({c.task.op.name for c in order[:10]}) >= 4
    gpus = Counter(c.task.gpu.name for c in order[:240])
    assert min(gpus.values()) > 20


def test_default_sizes():
    assert Release().splits() == {"train": 2400, "validation": 240}
    assert Release(validation=0).splits() == {"train": 2400}


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_filter_keeps_rows_of_the_unfiltered_release(split: str):
    whole, part = Release(), Release(ops=("rope", "rmsnorm"), gpus=("h100",), scenarios=("dispatch",))
    wanted = [
        i
        for i in range(whole.rows(split))
        if (c := cells()[whole.index(split, i) % len(cells())]).task.op.name in part.ops
        and c.task.gpu.name == "h100"
        and c.scenario == "dispatch"
    ]
    assert [part.index(split, i) for i in range(part.rows(split))] == wanted


def test_filters_are_normal_forms():
    assert Release(ops=("rope", "rmsnorm", "rope")).ops == ("rmsnorm", "rope")
    assert Release(gpus=tuple(g.name for g in GPUS)) == Release()
    assert Release(ops=tuple(reversed([o.name for o in OPS]))).key() == Release().key()


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ({"seed": -5}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"episodes": 0}, "episodes"),
        ({"episodes": -1}, "episodes"),
        ({"validation": -1}, "validation"),
        ({"gpus": ("h999",)}, "gpu"),
        ({"ops": ("",)}, "op"),
        ({"scenarios": ("solo",)}, "scenario"),
        ({"episodes": 1, "ops": tuple(o.name for o in OPS if o is not cells()[0].task.op)}, "filters match no episode"),
        ({"episodes": 2.5}, "episodes"),
        ({"episodes": True}, "episodes"),
    ],
)
def test_bad_values_are_refused_in_one_line(bad: dict, what: str):
    with pytest.raises(InputError, match=what) as error:
        Release(**bad)
    assert "\n" not in str(error.value)
    assert "allowed" in str(error.value)


def test_rows_and_index_agree_far_out():
    release = Release(episodes=10**9, ops=("rope",))
    last = release.rows("train") - 1
    assert release.index("train", last) < 10**9
    with pytest.raises(IndexError):
        release.index("train", last + 1)
