"""The transition every scenario shares: propose, compile, verify, bench, reward. Pure, and without a word of text.

What becomes of a candidate follows from its point (legal, illegal, too big to launch, unsupported) and its bug; how fast it is follows from
the landscape and the noise of one session.
"""

import math
from dataclasses import dataclass
from typing import Final

from generator.ops.base import Bug
from generator.rng import Dice
from generator.task import Point
from schema.vocab import FIXED_REWARDS

SESSION_SIGMA: Final = (0.015, 0.035)
"""Between sessions on one board, below and above `LONG_MS`: robust sigma over 71,000 pairs of published runs."""
LONG_MS: Final = 0.5
RUN_SIGMA: Final = (0.008, 0.003)
"""Of a median of 100 runs, below and above `SHORT_MS`: 3-5 % and 0.5-1 % a run."""
SHORT_MS: Final = 0.1
OUTLIER: Final = 0.015
"""Share of benches disturbed by other work on the host; they read 10-50 % slow."""
HEADROOM: Final = 0.25
"""A lucky session keeps at least this part of what the model puts above the floor: no time may reach the floor itself."""

_FATES: Final = {"illegal": "compile_error", "launch": "compile_error", "unsupported": "unsupported_arch"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status, measured time (None unless it ran) and reward of one candidate."""

    status: str
    time_ms: float | None
    reward: float


def significant(x: float) -> float:
    """`x` rounded to seven significant digits, as every stored real."""
    return float(f"{x:.7g}")


class Bench:
    """One session on one board: cold L2, median of 100, a session factor shared by all its benches."""

    __slots__ = ("_dice", "_floor", "_session")

    def __init__(self, dice: Dice, floor_ms: float, baseline_ms: float) -> None:
        self._dice = dice
        self._floor = floor_ms
        self._session = 1.0 + SESSION_SIGMA[baseline_ms > LONG_MS] * dice.normal()

    def measure(self, ms: float) -> float:
        """An observation of a noiseless time, in ms, rounded; at or above the floor."""
        factor = self._session * (1.0 + RUN_SIGMA[ms > SHORT_MS] * self._dice.normal())
        disturbed, by = self._dice.chance(OUTLIER), self._dice.between(1.1, 1.5)
        if disturbed:
            factor *= by
        return max(significant(max(ms * factor, self._floor + HEADROOM * (ms - self._floor))), self._floor)


def step(point: Point, bug: Bug | None, prev_best: float, bench: Bench) -> Outcome:
    """What the environment answers a candidate whose agent has to beat `prev_best` ms."""
    if point.fate != "legal":
        status = _FATES[point.fate]
        return Outcome(status, None, FIXED_REWARDS[status])
    if bug is not None:
        return Outcome("wrong_result", None, FIXED_REWARDS["wrong_result"])
    time_ms = bench.measure(point.ms)
    if time_ms < prev_best:
        return Outcome("kept", time_ms, kept_reward(prev_best, time_ms))
    return Outcome("no_improvement", time_ms, FIXED_REWARDS["no_improvement"])


def kept_reward(prev_best: float, time_ms: float) -> float:
    """`min(1, log2(prev_best / time_ms))`, rounded."""
    return significant(min(1.0, math.log2(prev_best / time_ms)))


def verdict_reward(speedup: float) -> float:
    """`log2(speedup) / 4`, rounded."""
    return significant(math.log2(speedup) / 4)
