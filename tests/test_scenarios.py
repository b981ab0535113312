"""Every op on every board in every scenario: what must hold of any campaign, read from its messages alone."""

import re

import pytest

from generator.gpus import GPUS
from generator.ops import OPS
from generator.ops.base import Op
from generator.phrases import SEPARATOR, ms
from generator.rng import Dice, stream_key
from generator.scenarios import SCENARIOS
from generator.stage import Stage
from generator.task import landscape, task
from generator.team import assemble
from schema.vocab import SPECIALISTS

CASES = [(op, gpu, name) for op in OPS for gpu in GPUS for name in SCENARIOS]


def play(op, gpu, scenario: str, visit: int = 3) -> tuple[Stage, list[float]]:
    index = CASES.index((op, gpu, scenario))
    streams = [Dice(stream_key("test", name), index) for name in ("plan", "play", "noise", "prose")]
    land = landscape(task(op.name, gpu.name, tuple(op.shapes[index % 3].values())))
    lead, team = assemble(scenario, visit, streams[0])
    stage = Stage(land, lead, team, *streams[1:])
    SCENARIOS[scenario](stage)
    return stage, stage.finish(streams[0])


@pytest.mark.parametrize(("op", "gpu", "scenario"), CASES, ids=lambda x: getattr(x, "name", x))
def test_campaign(op, gpu, scenario: str):
    stage, seconds = play(op, gpu, scenario)
    log = stage.log.messages
    low, high = SPECIALISTS[scenario]
    assert low <= len(stage.team) <= high
    assert seconds == sorted(seconds)
    assert 3600 <= seconds[-1] <= 18000
    check_order(log)
    check_best_and_rewards(stage)
    check_merges(stage)
    check_sources(stage)
    check_boards(stage)


def check_order(log) -> None:
    assert [m.kind for m in log[:3]] == ["plan", "candidate", "result"]
    assert log[-1].kind == "verdict"
    answered = {m.reply_to: m for m in log if m.kind == "result"}
    stopped = {m.reply_to for m in log if m.kind == "review" and not m.passed}
    for i, m in enumerate(log):
        if m.kind == "candidate":
            assert (i in answered) != (i in stopped)
        if m.reply_to is not None:
            assert m.reply_to < i
            assert log[m.reply_to].kind == "candidate"


def check_best_and_rewards(stage: Stage) -> None:
    """Replays what each agent had to beat."""
    log = stage.log.messages
    baseline = log[2].time_ms
    merged, own, tries, kept = float("inf"), {}, {}, {}
    for m in log[3:]:
        if m.kind == "merge":
            assert m.time_ms <= merged
            merged = m.time_ms
        if m.kind == "result":
            prev = min(own.get(m.to, float("inf")), merged, baseline)
            tries[m.to] = tries.get(m.to, 0) + 1
            if m.status == "kept":
                assert m.time_ms < prev
                kept[m.to] = kept.get(m.to, 0) + 1
                own[m.to] = m.time_ms
            elif m.status == "no_improvement":
                assert m.time_ms >= prev
    for agent in stage.team:
        assert (agent.tries, agent.kept, agent.best_ms) == (tries.get(agent.id, 0), kept.get(agent.id, 0), own.get(agent.id))
    assert stage.best_ms == min([*own.values(), baseline]) == log[-1].time_ms
    assert stage.lead.tries == 0


def check_merges(stage: Stage) -> None:
    """A merge names an agent, and the candidate and time with which it was last kept."""
    log = stage.log.messages
    last: dict[str, tuple] = {}
    for m in log:
        if m.kind == "result" and m.status == "kept":
            last[m.to] = (m.time_ms, log[m.reply_to].variant, log[m.reply_to].params)
        if m.kind in {"merge", "verdict"} and m.to is not None:
            assert (m.time_ms, m.variant, m.params) == last[m.to]


def check_sources(stage: Stage) -> None:
    """No agent submits a source twice; a wrong result's source carries a bug or is a shortcut's; all others do not."""
    log, land = stage.log.messages, stage.land
    sent = [(m.agent, m.content) for m in log if m.kind == "candidate"]
    assert len(set(sent)) == len(sent)
    points = {
        (p.variant.name, p.label): p for some in (*land.legal.values(), *land.faulty.values(), land.lacking, land.flawed) for p in some
    }
    points[land.baseline.variant.name, land.baseline.label] = land.baseline
    for m in log:
        if m.kind == "result":
            candidate = log[m.reply_to]
            point = points[candidate.variant, " ".join(f"{k}={v}" for k, v in candidate.params.items())]
            assert (candidate.content == land.source(point)) == (m.status != "wrong_result" or point.fate == "flawed")


def check_boards(stage: Stage) -> None:
    """Leaderboards parse, and rank as the results so far say."""
    best: dict[str, float] = {}
    for m in stage.log.messages:
        if m.kind == "result" and m.status == "kept":
            best[m.to] = m.time_ms
        if m.kind == "leaderboard":
            entries = m.content.split(SEPARATOR)
            ranked = [re.fullmatch(r"(\d+) (a\d\d) ([\d.]+) (\w+)", e) for e in entries[: len(best)]]
            assert [r[2] for r in ranked] == sorted(best, key=lambda a: (best[a], a))
            assert [r[3] for r in ranked] == [ms(best[r[2]]) for r in ranked]
            assert all(re.fullmatch(r"a\d\d -", e) for e in entries[len(best) :])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_smallest_and_largest_teams(scenario: str):
    low, high = SPECIALISTS[scenario]
    for visit in (0, high - low):
        stage, _ = play(OPS[0], GPUS[0], scenario, visit)
        assert len(stage.team) == low + visit
        assert 20 < len(stage.log.messages) < 180


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rewording_moves_no_measurement(scenario: str, monkeypatch: pytest.MonkeyPatch):
    """Prose has a stream of its own."""
    before, seconds = play(OPS[2], GPUS[0], scenario)
    monkeypatch.setattr("generator.phrases.status", lambda *_: "reworded")
    monkeypatch.setattr("generator.phrases.kept", lambda dice, *_: f"kept {dice.uniform()} {dice.uniform()}")
    after, same_seconds = play(OPS[2], GPUS[0], scenario)
    assert seconds == same_seconds
    assert [m._replace(content="") for m in before.log.messages] == [m._replace(content="") for m in after.log.messages]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_pipeline_climbs_from_the_weakest_variant_to_the_strongest(op: Op):
    for gpu in GPUS:
        stage, _ = play(op, gpu, "pipeline", 0)
        asked = [m.subtask.split(":")[0] for m in stage.log.messages if m.kind in {"dispatch", "redirect"}]
        assert (asked[0], asked[-1]) == (stage.land.ladder[0], stage.land.ladder[-1])
