"""The stage a scenario plays on: a clock, one bench queue, and the few acts campaigns are made of (ask, work, merge, ...).

An actor is a generator that yields how long it is busy, in units of one try; `run` resumes whoever is ready first, and messages are
written when an actor acts, so time never runs back. A merge waits until all actors of a round have returned: what an agent has to
beat moves only between rounds. The pace (seconds a unit) is drawn when the play is over, so that every campaign fits its horizon.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Final

from generator import phrases
from generator.environment import Bench, Outcome, significant, step, verdict_reward
from generator.facts import Check
from generator.log import Log, Message
from generator.rng import Dice
from generator.task import Landscape, Point
from generator.team import Agent, Pick, choose
from schema.vocab import ENV

BENCH: Final = 0.12
"""Units a bench, a review and a verification take; one of each at a time."""
REVIEW: Final = 0.3
VERIFY: Final = 0.25
NOTE: Final = 0.02
"""Units between two messages of the lead or the environment."""
HORIZON_S: Final = (3600.0, 18000.0)
CATCH: Final = 0.65
"""Chance that a reviewer of skill 1 stops a bad candidate."""
FALSE_ALARM: Final = 0.03
STATUS: Final = 0.25
"""Chance that an agent reports before a try."""

Actor = Iterator[float]


class Stage:
    """One campaign while it is played."""

    def __init__(self, land: Landscape, lead: Agent, team: Sequence[Agent], dice: Dice, noise: Dice, prose: Dice) -> None:
        self.land = land
        self.lead = lead
        self.team = team
        self.dice = dice
        self.prose = prose
        self.log = Log()
        self.now = 0.0
        self.tolerance = land.task.op.tolerance
        self.bench = Bench(noise, land.floor_ms, land.baseline.ms)
        self.baseline_ms = math.inf
        self.shared_ms = math.inf
        """Time of the last merge."""
        self.top: Point | None = None
        """The merged candidate's point."""
        self._free = {"bench": 0.0, "review": 0.0, "verify": 0.0}
        self._rechecked: dict[str, float] = {}

    # -- the acts of the lead and the environment ---------------------------------------------

    def open(self, scenario: str) -> None:
        """Plan, baseline candidate, baseline result: messages 0, 1 and 2."""
        self._say(self.lead, "plan", phrases.plan(self.prose, scenario, self.land, len(self.team)), after=self.dice.between(0.05, 0.2))
        point = self.land.baseline
        self.now += self.dice.between(0.3, 0.6)
        sent = self._submit(self.lead, Pick(point))
        self.now += BENCH
        self.baseline_ms = self.bench.measure(point.ms)
        text = phrases.baseline_result(self.prose, point, self.baseline_ms, self.land.floor_ms, self.tolerance)
        head = (ENV, ENV, "result", text, 0.0, self.lead.id, None, sent, None, None, "baseline", self.baseline_ms)
        self._add(Message(*head, max_rel_err=self._error(Pick(point))))

    def ask(self, agent: Agent, region: Sequence[Point]) -> None:
        """The lead gives an agent a region: a redirect where it leaves one to join the winner's variant, else a dispatch."""
        points = tuple(region)
        was = agent.region[0].variant if agent.region else None
        agent.region = points
        span = phrases.sweep(points)
        subtask = f"{points[0].variant.name}: {span}"
        if was is not None and self.top is not None and points[0].variant is self.top.variant:
            text = phrases.redirect(self.prose, agent.id, was, agent.best_ms, span, self.top, self.shared_ms)
            self._say(self.lead, "redirect", text, to=agent.id, subtask=subtask)
        else:
            text = phrases.dispatch(self.prose, agent.id, points[0].variant, span, self.to_beat(agent))
            self._say(self.lead, "dispatch", text, to=agent.id, subtask=subtask)

    def board(self) -> list[Agent]:
        """Publishes the leaderboard; returns the agents that have kept something, best first."""
        ranked = self.ranking()
        rest = [a for a in self.team if a.best is None and a.role in {"worker", "tuner"}]
        rows = [(a.id, a.best_ms, a.best.variant.name if a.best else "") for a in [*ranked, *rest]]
        self.now += NOTE
        self._add(Message(ENV, ENV, "leaderboard", phrases.leaderboard(rows)))
        return ranked

    def merge(self) -> None:
        """The best kept candidate becomes the shared best; after a re-bench the re-benched times decide between leaders."""
        ranked = [a for a in self.ranking() if a.best_ms is not None and a.best_ms < self.shared_ms]
        rechecked = [a for a in ranked if a.id in self._rechecked]
        winner = min(rechecked, key=lambda a: (self._rechecked[a.id], a.id)) if rechecked else next(iter(ranked), None)
        self._rechecked.clear()
        shared = min(self.shared_ms, self.baseline_ms)
        if winner is None or winner.best is None or winner.best_ms is None:
            self._say(self.lead, "status", phrases.no_merge(self.prose, shared))
            return
        text = phrases.merge(self.prose, winner.id, winner.best, winner.best_ms, shared)
        self.top, self.shared_ms = winner.best, winner.best_ms
        self.now += NOTE
        point = winner.best
        head = (self.lead.role, self.lead.id, "merge", text, 0.0, winner.id, None, None)
        self._add(Message(*head, point.variant.name, point.params, None, winner.best_ms))

    def verdict(self) -> None:
        """The last message: the least kept time, or the baseline, and the terminal reward."""
        winner = next(iter(self.ranking()), None)
        point = winner.best if winner and winner.best else self.land.baseline
        best_ms = self.best_ms
        who = winner.id if winner else None
        text = phrases.verdict(self.prose, self.baseline_ms, best_ms, self.land.floor_ms, point, who)
        self.now += self.dice.between(0.1, 0.3)
        head = (self.lead.role, self.lead.id, "verdict", text, verdict_reward(self.speedup), None, None, None)
        self._add(Message(*head, point.variant.name, point.params, None, best_ms))

    # -- what scenarios ask about the state -----------------------------------------------------

    @property
    def best_ms(self) -> float:
        """The least kept time; the baseline's if nothing was kept."""
        return min([a.best_ms for a in self.team if a.best_ms is not None], default=self.baseline_ms)

    @property
    def speedup(self) -> float:
        return significant(self.baseline_ms / self.best_ms)

    def ranking(self) -> list[Agent]:
        """Agents that kept something, by best kept time."""
        kept = [(a.best_ms, a.id, a) for a in self.team if a.best_ms is not None]
        return [agent for _, _, agent in sorted(kept)]

    def to_beat(self, agent: Agent) -> float:
        """The time below which a try of this agent is kept."""
        own = agent.best_ms if agent.best_ms is not None else math.inf
        return min(own, self.shared_ms, self.baseline_ms)

    def crew(self, role: str) -> list[Agent]:
        return [a for a in self.team if a.role == role]

    def share(self, budget: float, crew: int) -> int:
        """Tries of one of `crew` agents that share a bench budget: at least one, fractions drawn."""
        each = budget / crew
        return max(1, int(each) + self.dice.chance(each - int(each)))

    # -- actors ---------------------------------------------------------------------------------

    def run(self, *actors: Actor) -> None:
        """Plays a round: all actors at once, until the last has returned."""
        ready = [(self.now + self.dice.between(0.0, 0.1), i, actor) for i, actor in enumerate(actors)]
        heapq.heapify(ready)
        while ready:
            self.now, i, actor = heapq.heappop(ready)
            busy = next(actor, None)
            if busy is not None:
                heapq.heappush(ready, (self.now + busy, i, actor))

    def work(self, agent: Agent, tries: int, think: float = 1.0) -> Actor:
        """Think, submit, bench, learn; `tries` times or until nothing is left."""
        for done in range(tries):
            pick = choose(agent, self.land, self.dice)
            if pick is None:
                self._add(Message(agent.role, agent.id, "status", phrases.exhausted(self.prose, done)))
                return
            yield self._thinking(think)
            self._report(agent, done, tries, pick)
            sent = self._submit(agent, pick)
            yield self._queue("bench", BENCH)
            self._result(agent, pick, sent)

    def propose(self, agent: Agent, reviewer: Agent, verifier: Agent, tries: int) -> Actor:
        """As `work`, but a reviewer reads each candidate before it may run, and a verifier checks what was kept or wrong."""
        for done in range(tries):
            pick = choose(agent, self.land, self.dice)
            if pick is None:
                self._add(Message(agent.role, agent.id, "status", phrases.exhausted(self.prose, done)))
                return
            yield self._thinking(1.0)
            self._report(agent, done, tries, pick)
            sent = self._submit(agent, pick)
            yield self._queue("review", REVIEW)
            if not self._review(reviewer, agent, pick, sent):
                continue
            yield self._queue("bench", BENCH)
            outcome = self._result(agent, pick, sent)
            if outcome.status in {"kept", "wrong_result"}:
                yield self._queue("verify", VERIFY)
                self._verify(verifier, pick, sent)

    def recheck(self, verifier: Agent, leaders: Sequence[Agent]) -> Actor:
        """The verifier re-benches each leader's best candidate; the next merge goes by these times."""
        for agent in leaders:
            if agent.best is None:
                continue
            yield self._queue("verify", VERIFY)
            time_ms = self.bench.measure(agent.best.ms)
            self._rechecked[agent.id] = time_ms
            pick = Pick(agent.best)
            text = phrases.verify_pass(self.prose, self._check(pick), self.tolerance, time_ms)
            head = (verifier.role, verifier.id, "verify", text, 0.0, None, None, agent.best_message)
            self._add(Message(*head, time_ms=time_ms, passed=True, max_rel_err=self._error(pick)))

    def hand_over(self, giver: Agent, taker: Agent) -> None:
        """Passes the giver's best candidate on; the taker tunes around it."""
        if giver.best is None or giver.best_ms is None:
            return
        taker.region = self.land.near(giver.best)
        text = phrases.handoff(self.prose, taker.id, giver.best, giver.best_ms)
        self._say(giver, "handoff", text, to=taker.id, reply_to=giver.best_message)

    def finish(self, pace: Dice) -> list[float]:
        """Times of all messages in seconds, to 0.1 s; the horizon of the campaign is drawn here."""
        horizon = pace.between(*HORIZON_S)
        scale = horizon / self.log.units[-1]
        return [round(units * scale, 1) for units in self.log.units]

    # -- single messages ------------------------------------------------------------------------

    def _add(self, message: Message) -> int:
        return self.log.add(self.now, message)

    def _say(
        self,
        agent: Agent,
        kind: str,
        text: str,
        *,
        to: str | None = None,
        subtask: str | None = None,
        reply_to: int | None = None,
        after: float = NOTE,
    ) -> int:
        self.now += after
        return self._add(Message(agent.role, agent.id, kind, text, 0.0, to, subtask, reply_to))

    def _thinking(self, think: float) -> float:
        return think * self.dice.between(0.5, 1.5)

    def _queue(self, desk: str, length: float) -> float:
        """How long until this desk has served us, behind whoever came before."""
        self._free[desk] = max(self._free[desk], self.now) + length
        return self._free[desk] - self.now

    def _report(self, agent: Agent, done: int, tries: int, pick: Pick) -> None:
        if done and self.dice.chance(STATUS):
            text = phrases.status(self.prose, done, tries, agent.best_ms, agent.best, pick.point)
            self._add(Message(agent.role, agent.id, "status", text))

    def _submit(self, agent: Agent, pick: Pick) -> int:
        agent.sent.add(pick.key)
        point = pick.point
        text = self.land.source(point, pick.bug)
        return self._add(Message(agent.role, agent.id, "candidate", text, variant=point.variant.name, params=point.params))

    def _result(self, agent: Agent, pick: Pick, sent: int) -> Outcome:
        prev_best = self.to_beat(agent)
        outcome = step(pick.point, pick.bug, prev_best, self.bench)
        text = self._outcome_text(pick, outcome, prev_best)
        status, time_ms = outcome.status, outcome.time_ms
        head = (ENV, ENV, "result", text, outcome.reward, agent.id, None, sent, None, None, status, time_ms)
        self._add(Message(*head, max_rel_err=self._error(pick)))
        agent.tries += 1
        if status == "kept":
            agent.kept += 1
            agent.best_ms, agent.best, agent.best_message = time_ms, pick.point, sent
        elif status == "unsupported_arch":
            agent.told = True
        return outcome

    def _check(self, pick: Pick) -> Check:
        """What running a pick said. It must be one that runs."""
        return self.land.check(pick.point, pick.bug)

    def _error(self, pick: Pick) -> float | None:
        """The error measured of a pick; None if it does not run, or a fault stops it."""
        return self._check(pick).error if pick.point.check is not None else None

    def _outcome_text(self, pick: Pick, outcome: Outcome, prev_best: float) -> str:
        point, prose = pick.point, self.prose
        if outcome.status == "kept" and outcome.time_ms is not None:
            return phrases.kept(prose, outcome.time_ms, prev_best, self.land.floor_ms, self.tolerance, point)
        if outcome.time_ms is not None:
            return phrases.no_improvement(prose, outcome.time_ms, prev_best, self.tolerance, point)
        if pick.flaw is not None:
            return phrases.wrong_result(prose, pick.flaw, point, self._check(pick), self.tolerance)
        if point.fate == "illegal":
            return point.diagnostic
        if point.fate == "launch":
            return phrases.launch_failure(prose, point)
        return phrases.unsupported(prose, point, self.land.task.gpu.arch)

    def _review(self, reviewer: Agent, author: Agent, pick: Pick, sent: int) -> bool:
        bad = pick.bug is not None or pick.point.fate != "legal"
        stopped = self.dice.chance(CATCH * reviewer.skill if bad else FALSE_ALARM / reviewer.skill)
        if stopped:
            text = phrases.review_fail(self.prose, pick.point, pick.flaw, self.to_beat(author))
            author.told = author.told or pick.point.fate == "unsupported"
        else:
            text = phrases.review_pass(self.prose, pick.point)
        self._add(Message(reviewer.role, reviewer.id, "review", text, reply_to=sent, passed=not stopped))
        return not stopped

    def _verify(self, verifier: Agent, pick: Pick, sent: int) -> None:
        check, right = self._check(pick), pick.flaw is None
        if pick.flaw is None:
            text = phrases.verify_pass(self.prose, check, self.tolerance)
        else:
            text = phrases.verify_fail(self.prose, pick.flaw, check, self.tolerance)
        head = (verifier.role, verifier.id, "verify", text)
        self._add(Message(*head, reply_to=sent, passed=right, max_rel_err=check.error))
