from collections import Counter

import numpy as np
import pytest

from generator.release import training_tasks
from generator.rng import Dice, stream_key
from generator.task import landscape
from generator.team import CLOSE, Agent, assemble, choose, roles, size, slices
from schema.vocab import SCENARIOS, SPECIALISTS

LANDS = [landscape(t) for t in training_tasks()[::25]]


def dice(index: int = 0) -> Dice:
    return Dice(stream_key("test", "team"), index)


def worker(skill: float = 1.0) -> Agent:
    return Agent(id="a01", role="worker", skill=skill)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_size_comes_in_turn(scenario: str):
    low, high = SPECIALISTS[scenario]
    sizes = Counter(size(scenario, visit) for visit in range((high - low + 1) * 10))
    assert set(sizes) == set(range(low, high + 1))
    assert set(sizes.values()) == {10}
    assert all(len(roles(scenario, n)) == n for n in sizes)


def test_pipelines_always_have_a_reviewer_and_a_verifier():
    assert [Counter(roles("pipeline", n)) for n in (3, 4, 5, 6)] == [
        Counter(worker=1, reviewer=1, verifier=1),
        Counter(worker=1, reviewer=1, verifier=1, tuner=1),
        Counter(worker=2, reviewer=1, verifier=1, tuner=1),
        Counter(worker=2, reviewer=1, verifier=1, tuner=2),
    ]
    assert Counter(roles("campaign", 12)) == Counter(worker=11, verifier=1)


def test_skills_are_around_one():
    skills = [a.skill for i in range(400) for a in assemble("dispatch", i, dice(i))[1]]
    assert min(skills) >= 0.65
    assert max(skills) <= 1.35
    assert np.mean(skills) == pytest.approx(1.0, abs=0.01)
    assert np.std(skills) == pytest.approx(0.13, abs=0.01)
    assert [a.id for a in assemble("campaign", 0, dice())[1]] == [f"a{i:02d}" for i in range(1, 6)]


@pytest.mark.parametrize("land", LANDS, ids=lambda land: land.task.task_id)
def test_nothing_is_picked_twice_and_everything_is_at_last(land):
    agent, draws = worker(0.7), dice()
    agent.region = land.legal[land.ladder[-1]][:3]
    picks = []
    while (pick := choose(agent, land, draws)) is not None:
        picks.append(pick.key)
        agent.sent.add(pick.key)
    assert len(set(picks)) == len(picks)
    legal = {(p.key, "") for points in land.legal.values() for p in points}
    assert legal <= set(picks)


def test_an_agent_stays_in_its_region_while_it_can():
    land = LANDS[0]
    agent, draws = worker(1.35), dice(1)
    agent.region = land.legal[land.ladder[0]][:4]
    wanted = {p.key for p in agent.region}
    for _ in range(4):
        pick = choose(agent, land, draws)
        if pick.point.fate == "legal" and pick.bug is None:
            assert pick.point.key in wanted
        agent.sent.add(pick.key)


def test_the_skilled_slip_less_and_pick_better():
    land = LANDS[0]
    bad, time = {}, {}
    for skill in (0.75, 1.0, 1.25):
        agent = worker(skill)
        agent.region = land.legal[land.ladder[-1]]
        picks = [choose(agent, land, dice(i)) for i in range(3000)]
        bad[skill] = np.mean([p.bug is not None or p.point.fate != "legal" for p in picks])
        time[skill] = np.mean([p.point.ms for p in picks if p.bug is None and p.point.fate == "legal"])
    assert bad[0.75] > 1.5 * bad[1.0] > 2.25 * bad[1.25]
    assert time[0.75] > time[1.0] > time[1.25]


def test_slices_deal_every_point_and_leave_nobody_idle():
    points = LANDS[0].legal[LANDS[0].ladder[-1]]
    for count in (1, 4, len(points), len(points) + 5):
        parts = slices(points, count)
        assert len(parts) == count
        assert all(parts)
        assert {p.key for part in parts for p in part} == {p.key for p in points}


def test_a_slip_is_made_in_the_agents_region_or_close_by():
    land = LANDS[0]
    slips = 0
    for point in land.legal[land.ladder[-1]]:
        near = [p.key for p in land.near(point) if p.bugs][:CLOSE]
        agent = worker(0.65)
        agent.region = [point]
        for i in range(60):
            pick = choose(agent, land, dice(i))
            if pick.bug is not None:
                slips += 1
                assert pick.bug in pick.point.bugs
                assert pick.point.key in ([point.key] if point.bugs else near)
    assert slips > 50
