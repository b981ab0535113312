"""Agents: who they are, how skilled, and how they decide what to submit next.

Skill shows in two ways only. A slip (an illegal point, a bug, a variant the arch lacks) is the less likely the more skilled the agent,
and a skilled agent weighs more points before it picks one. Decisions never read the clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from generator.environment import significant
from generator.ops.base import Bug, Flaw
from generator.rng import Dice
from generator.task import Landscape, Point
from schema.vocab import LEAD, SPECIALISTS

SKILL_SIGMA: Final = 0.13
SKILL_RANGE: Final = (0.65, 1.35)
SLIP_RANGE: Final = (0.35, 2.5)
ILLEGAL_BELOW: Final = 0.105
"""Thresholds on a draw divided by the agent's slip: first an illegal point, then a bug, then a variant the arch lacks."""
BUG_BELOW: Final = 0.19
LACKING_BELOW: Final = 0.36
CLOSE: Final = 2
"""Neighbours of a region in which no slip shows, where one may be made instead."""
GLANCES: Final = 4
"""An average agent weighs up to this many points before it picks one."""


@dataclass(slots=True, kw_only=True)
class Agent:
    """One member of the team and what it has done so far."""

    id: str
    role: str
    skill: float
    tries: int = 0
    kept: int = 0
    best_ms: float | None = None
    best: Point | None = None
    """Point of its best kept try; `best_message` is the index of that candidate's message."""
    best_message: int = -1
    region: Sequence[Point] = ()
    """The points it was asked to explore."""
    sent: set[tuple[int, str]] = field(default_factory=set)
    """Sources it has submitted, stopped ones included: none is submitted twice."""
    told: bool = False
    """It has learned that some variant does not run here."""

    @property
    def slip(self) -> float:
        """How error-prone it is: 1 for an average agent."""
        return min(max(1.0 / (self.skill * self.skill * self.skill * self.skill), SLIP_RANGE[0]), SLIP_RANGE[1])


@dataclass(frozen=True, slots=True)
class Pick:
    """What an agent decides to submit: a point, perhaps with a slip in its source."""

    point: Point
    bug: Bug | None = None

    @property
    def flaw(self) -> Flaw | None:
        """Why its results are wrong, if it runs."""
        return self.bug or (self.point.variant.flaw if self.point.fate == "flawed" else None)

    @property
    def key(self) -> tuple[int, str]:
        return self.point.key, self.bug.name if self.bug else ""


def roles(scenario: str, n: int) -> list[str]:
    """Roles of `n` specialists: a pipeline has one reviewer and one verifier and, from four on, a tuner; a campaign has one verifier."""
    if scenario == "pipeline":
        return [*["worker"] * (1 if n < 5 else 2), "reviewer", "verifier", *["tuner"] * (n // 2 - 1)]
    if scenario == "campaign":
        return [*["worker"] * (n - 1), "verifier"]
    return ["worker"] * n


def size(scenario: str, visit: int) -> int:
    """Specialists of the `visit`-th campaign of a scenario: every size of its range in turn, so the mean does not wander with the seed."""
    low, high = SPECIALISTS[scenario]
    return low + visit % (high - low + 1)


def assemble(scenario: str, visit: int, dice: Dice) -> tuple[Agent, list[Agent]]:
    """The lead and the specialists `a01`, `a02`, ...; skills are near-normal around 1, the lead's is 1."""
    low, high = SKILL_RANGE
    team = []
    for i, role in enumerate(roles(scenario, size(scenario, visit)), 1):
        skill = significant(min(max(1.0 + SKILL_SIGMA * dice.normal(), low), high))
        team.append(Agent(id=f"a{i:02d}", role=role, skill=skill))
    return Agent(id=LEAD, role=LEAD, skill=1.0), team


def choose(agent: Agent, land: Landscape, dice: Dice) -> Pick | None:
    """What the agent submits next, never a source it has sent before; None when there is nothing left to try."""
    draw = dice.uniform() / agent.slip
    focus = dice.pick(agent.region).variant.name if agent.region else land.ladder[-1]
    pick: Pick | None = None
    if draw < ILLEGAL_BELOW:
        pick = _unsent(agent, [Pick(p) for p in land.faulty[focus]], dice)
    elif draw < BUG_BELOW:
        pick = _slip(agent, land, focus, dice)
    elif draw < LACKING_BELOW and land.lacking and not agent.told:
        pick = _unsent(agent, [Pick(p) for p in land.lacking], dice)
    return pick or _honest(agent, land, focus, dice)


def _slip(agent: Agent, land: Landscape, focus: str, dice: Dice) -> Pick | None:
    """A bug that a check catches at a point of its region, or close by, or, once, a shortcut that the op does not allow."""
    mine = [p for p in agent.region if p.bugs]
    if agent.region and not mine:
        mine = [p for p in land.near(agent.region[0]) if p.bugs][:CLOSE]
    point = _weigh(agent, mine or [p for p in land.legal[focus] if p.bugs], dice, unsent_only=False)
    picks = [Pick(point, bug) for bug in point.bugs] if point else []
    tempting = [Pick(p) for p in land.flawed]
    if not any(pick.key in agent.sent for pick in tempting):
        picks += tempting
    return _unsent(agent, picks, dice)


def _honest(agent: Agent, land: Landscape, focus: str, dice: Dice) -> Pick | None:
    """The best unsent point it sees in its region, else in that variant, else anywhere."""
    elsewhere = [land.legal[name] for name in reversed(land.ladder) if name != focus]
    for points in (agent.region, land.legal[focus], *elsewhere):
        point = _weigh(agent, points, dice)
        if point is not None:
            return Pick(point)
    return None


def _weigh(agent: Agent, points: Sequence[Point], dice: Dice, *, unsent_only: bool = True) -> Point | None:
    """The fastest of a few points looked at: the more skilled the agent, the more it looks at."""
    open_points = [p for p in points if (p.key, "") not in agent.sent] if unsent_only else list(points)
    glances = 1 + int(GLANCES * dice.uniform() * agent.skill * agent.skill * agent.skill)
    seen = dice.sample(open_points, glances)
    return min(seen, key=lambda p: (p.ms, p.key)) if seen else None


def _unsent(agent: Agent, picks: Sequence[Pick], dice: Dice) -> Pick | None:
    fresh = [pick for pick in picks if pick.key not in agent.sent]
    return dice.pick(fresh) if fresh else None


def slices(points: Sequence[Point], count: int) -> list[Sequence[Point]]:
    """`points` dealt to `count` agents; where there are fewer points than agents, some share one."""
    return [points[i::count] or (points[i % len(points)],) for i in range(count)]
