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

_SQRT_HALF: Final = 0.7071067811865476
_TWO_OVER_LN2: Final = 2.8853900817779268
_ODD: Final = (23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1)

_FATES: Final = {
    "illegal": "compile_error",
    "launch": "compile_error",
    "unsupported": "unsupported_arch",
    "flawed": "wrong_result",
}


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
    return significant(min(1.0, log2(prev_best / time_ms)))


def verdict_reward(speedup: float) -> float:
    """`log2(speedup) / 4`, rounded."""
    return significant(log2(speedup) / 4)


def log2(x: float) -> float:
    """Binary logarithm of a positive number by `+ - * /` alone, within 4 units of the last place.

    C libraries differ in the last bit of theirs, which rounding to seven digits hides all but once in a billion rewards.
    `log(m) = 2 artanh((m - 1) / (m + 1))` with m in [0.7, 1.4]; twelve terms of the series reach 1e-20.
    """
    m, exponent = math.frexp(x)
    if m < _SQRT_HALF:
        m, exponent = 2.0 * m, exponent - 1
    z = (m - 1.0) / (m + 1.0)
    square, series = z * z, 0.0
    for k in _ODD:
        series = series * square + 1.0 / k
    return exponent + _TWO_OVER_LN2 * z * series
