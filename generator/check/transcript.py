"""Checks `rewards` and `totals`: one campaign replayed from its messages alone, as the environment and the lead would have played it.

What an agent has to beat is the least of its own best kept time, the last merge's time and the baseline's; from the measured times follow
statuses, rewards, the agents' totals, every leaderboard, who is merged, and the verdict.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from generator import phrases
from generator.check.batch import Batch
from generator.check.library import ROUNDING, unpack_text
from generator.check.report import Report
from generator.environment import kept_reward, significant, verdict_reward
from schema.vocab import ENV, FIXED_REWARDS, LEAD, RAN

_TRIES: Final = ("worker", "tuner")
"""Roles that a leaderboard lists even before they have kept anything."""
_REWARDED: Final = ("result", "verdict")


@dataclass(slots=True)
class _Agent:
    """What the messages so far say of one agent."""

    role: str
    tries: int = 0
    kept: int = 0
    best_ms: float | None = None
    best: int = -1
    """Position of its best kept candidate."""


@dataclass(slots=True)
class _State:
    """A campaign while it is replayed."""

    agents: dict[str, _Agent]
    baseline_ms: float = math.inf
    shared_ms: float = math.inf
    rechecked: dict[str, float] = field(default_factory=dict)

    def to_beat(self, agent: str) -> float:
        found = self.agents.get(agent)
        own = found.best_ms if found and found.best_ms is not None else math.inf
        return min(own, self.shared_ms, self.baseline_ms)

    def ranking(self) -> list[tuple[float, str]]:
        return sorted((agent.best_ms, name) for name, agent in self.agents.items() if agent.best_ms is not None)

    def best_ms(self) -> float:
        return min([best for best, _ in self.ranking()], default=self.baseline_ms)

    def winner(self) -> str | None:
        """Whom the lead merges now: the best of those below the shared best, by re-benched time where there is one."""
        ranked = [name for best, name in self.ranking() if best < self.shared_ms]
        rechecked = [name for name in ranked if name in self.rechecked]
        return min(rechecked, key=lambda name: (self.rechecked[name], name)) if rechecked else next(iter(ranked), None)


class Replay:
    """Replays the rows of one batch into a report."""

    def __init__(self, batch: Batch, report: Report) -> None:
        self.batch = batch
        self.report = report
        columns = ("baseline_ms", "best_ms", "speedup", "elapsed_s", "n_agents", "num_messages")
        self.columns = {name: batch.column(name) for name in columns}

    def run(self) -> None:
        for check in ("rewards", "totals"):
            self.report.saw(check, len(self.batch))
        for row in range(len(self.batch)):
            self._row(row)

    def _row(self, row: int) -> None:
        batch = self.batch
        state = _State({str(agent["id"]): _Agent(str(agent["role"])) for agent in batch.team(row)})
        for at in batch.messages(row):
            self._act(row, at, batch.kind[at], state)
            if batch.reward[at] != 0 and batch.kind[at] not in _REWARDED:
                self._reward(row, at, "only results and the verdict are rewarded", 0.0)
            self._sender(row, at, state)
        self._totals(row, state)

    def _act(self, row: int, at: int, kind: str, state: _State) -> None:
        match kind:
            case "result":
                self._result(row, at, state)
            case "verdict":
                self._verdict(row, at, state)
            case "merge":
                self._merge(row, at, state)
            case "status" if self.batch.role[at] == LEAD:
                self._no_merge(row, at, state)
            case "verify":
                self._recheck(row, at, state)
            case "handoff":
                self._handoff(row, at, state)
            case "leaderboard":
                self._leaderboard(row, at, state)

    # -- rewards ----------------------------------------------------------------------------------

    def _result(self, row: int, at: int, state: _State) -> None:
        batch = self.batch
        status, time_ms, who = batch.status[at], batch.time_ms[at], batch.to[at] or ""
        if status == "baseline":
            if time_ms is not None:
                state.baseline_ms = time_ms
            self._reward(row, at, "a baseline earns 0", 0.0)
            return
        prev_best = state.to_beat(who)
        agent = state.agents.get(who)
        if agent is not None:
            agent.tries += 1
        if time_ms is None or status not in RAN:
            self._reward(row, at, "a candidate that did not run to the end earns its status's reward", FIXED_REWARDS.get(status or ""))
            return
        kept = time_ms < prev_best
        derived = "kept" if kept else "no_improvement"
        if status != derived:
            self._add("rewards", row, at, "a try is kept when it is below what its agent had to beat", status, derived)
        else:
            reward = _kept_reward(prev_best, time_ms) if kept else FIXED_REWARDS["no_improvement"]
            self._reward(row, at, "a try earns what its time says", reward)
        if kept and agent is not None:
            agent.kept += 1
            target = batch.target(row, at)
            agent.best_ms, agent.best = time_ms, -1 if target is None else target

    def _reward(self, row: int, at: int, what: str, derived: float | None) -> None:
        stored = self.batch.reward[at]
        if derived is None or abs(stored - derived) > ROUNDING * abs(derived):
            self._add("rewards", row, at, what, stored, derived)

    # -- totals -----------------------------------------------------------------------------------

    def _merge(self, row: int, at: int, state: _State) -> None:
        batch = self.batch
        who, time_ms = batch.to[at], batch.time_ms[at]
        derived = state.winner()
        self._same(row, at, "a merge goes to the best below the shared best, by re-benched times where there are any", who, derived)
        agent = state.agents.get(who or "")
        best = agent.best_ms if agent else None
        self._same(row, at, "a merge's time is its winner's best kept time", time_ms, best)
        self._candidate(row, at, agent.best if agent else -1, "a merge's")
        if time_ms is not None:
            if time_ms > state.shared_ms:
                self._add("totals", row, at, "no merge is above the one before", time_ms, state.shared_ms)
            state.shared_ms = time_ms
        state.rechecked.clear()

    def _no_merge(self, row: int, at: int, state: _State) -> None:
        """A status of the lead says that there was nothing to merge."""
        self._same(row, at, "the lead merges when an agent is below the shared best", None, state.winner())
        state.rechecked.clear()

    def _recheck(self, row: int, at: int, state: _State) -> None:
        time_ms, target = self.batch.time_ms[at], self.batch.target(row, at)
        if time_ms is None:
            return
        author = self.batch.agent[target] if target is not None else ""
        agent = state.agents.get(author)
        self._reply(row, at, "a re-bench is of its author's best kept candidate", target, agent.best if agent else -1)
        state.rechecked[author] = time_ms

    def _handoff(self, row: int, at: int, state: _State) -> None:
        agent = state.agents.get(self.batch.agent[at])
        self._reply(row, at, "a handoff is of its sender's best kept candidate", self.batch.target(row, at), agent.best if agent else -1)

    def _leaderboard(self, row: int, at: int, state: _State) -> None:
        ranked: list[tuple[str, float | None, str]] = [
            (name, best, self.batch.variant[state.agents[name].best] or "" if state.agents[name].best >= 0 else "")
            for best, name in state.ranking()
        ]
        ranked += [(name, None, "") for name, agent in state.agents.items() if agent.best_ms is None and agent.role in _TRIES]
        self._same(row, at, "a leaderboard ranks the agents by best kept time", self.batch.content[at], phrases.leaderboard(ranked))

    def _verdict(self, row: int, at: int, state: _State) -> None:
        best_ms = state.best_ms()
        speedup = _ratio(state.baseline_ms, best_ms)
        self._reward(row, at, "the verdict earns log2(speedup) / 4", verdict_reward(speedup) if speedup else None)
        self._same(row, at, "the verdict's time is the least kept", self.batch.time_ms[at], best_ms)
        winner = next((name for _, name in state.ranking()), None)
        baseline = self.batch.first[row] + 1
        self._candidate(row, at, baseline if winner is None else state.agents[winner].best, "the verdict's")

    def _sender(self, row: int, at: int, state: _State) -> None:
        """Who sends, and to whom: agents of the team, in their own roles."""
        name, to = self.batch.agent[at], self.batch.to[at]
        agent = state.agents.get(name)
        role = agent.role if agent else ENV if name == ENV else None
        if self.batch.role[at] != role:
            self._add("totals", row, at, "a message's role is its sender's", self.batch.role[at], role)
        if to is not None and to not in state.agents:
            self._add("totals", row, at, "a message goes to an agent of the team", to, None)

    def _candidate(self, row: int, at: int, best: int, whose: str) -> None:
        batch = self.batch
        variant, params = (batch.variant[best], batch.params[best]) if best >= 0 and best in batch.messages(row) else (None, None)
        self._same(row, at, f"{whose} variant is its winner's", batch.variant[at], variant)
        if batch.params[at] != params:
            self._add("totals", row, at, f"{whose} params are its winner's", unpack_text(batch.params[at]), unpack_text(params))

    def _totals(self, row: int, state: _State) -> None:
        for agent in self.batch.team(row):
            derived = state.agents[str(agent["id"])]
            for name, value in (("tries", derived.tries), ("kept", derived.kept), ("best_ms", derived.best_ms)):
                if agent[name] != value:
                    told = (f"{agent['id']}: {number}" for number in (agent[name], value))
                    self._add("totals", row, None, f"an agent's {name} is what its results say", *told)
        best_ms = state.best_ms()
        speedup = _ratio(state.baseline_ms, best_ms)
        self._same(row, None, "baseline_ms is the baseline's time", self.columns["baseline_ms"][row], state.baseline_ms)
        self._same(row, None, "best_ms is the least kept time", self.columns["best_ms"][row], best_ms)
        self._same(row, None, "speedup is baseline_ms / best_ms", self.columns["speedup"][row], speedup)
        messages = self.batch.messages(row)
        last = self.batch.t[messages[-1]] if messages else None
        self._same(row, None, "elapsed_s is the verdict's t", self.columns["elapsed_s"][row], last)
        self._same(row, None, "num_messages is the number of messages", self.columns["num_messages"][row], len(messages))
        self._same(row, None, "n_agents counts the specialists", self.columns["n_agents"][row], len(self.batch.team(row)) - 1)

    # -- telling ----------------------------------------------------------------------------------

    def _reply(self, row: int, at: int, what: str, target: int | None, best: int) -> None:
        if target != best:
            first = self.batch.first[row]
            self._add("totals", row, at, what, self.batch.reply_to[at], best - first if best >= first else None)

    def _same(self, row: int, at: int | None, what: str, stored: object, derived: object) -> None:
        if stored != derived:
            self._add("totals", row, at, what, stored, derived)

    def _add(self, check: str, row: int, at: int | None, what: str, stored: object, derived: object) -> None:
        message = None if at is None else at - self.batch.first[row]
        self.report.add(check, what, self.batch.ids[row], message, stored, derived)


def _kept_reward(prev_best: float, time_ms: float) -> float | None:
    return kept_reward(prev_best, time_ms) if 0 < time_ms < prev_best < math.inf else None


def _ratio(baseline_ms: float, best_ms: float) -> float | None:
    """None where there is none: such a row has broken other promises already."""
    ratio = baseline_ms / best_ms if 0 < best_ms <= baseline_ms < math.inf else math.inf
    return significant(ratio) if ratio < math.inf else None
