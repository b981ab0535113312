"""Counter-based draws: the only randomness in the project.

A stream is raw Philox words keyed by a hash of (seed, split, stream name) and placed by episode index, so any episode can be drawn alone,
any range equals its parts, and neighbouring seeds share nothing. NumPy's distributions are not used: their streams may change between
releases. Only `+ - * /` make numbers of words: the same bits on every CPU.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

T = TypeVar("T")

_BLOCK: Final = 128
"""Words drawn from Philox at a time."""
_SQRT3: Final = 1.7320508075688772


def stream_key(*parts: int | str) -> int:
    """128-bit Philox key of a stream, from the hash of its name parts."""
    name = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")


class Dice:
    """One episode's draws from one stream, in order."""

    __slots__ = ("_at", "_philox", "_words")

    def __init__(self, key: int, index: int = 0) -> None:
        """Draws of episode `index` from the stream with this key; episodes are 2**64 blocks of the counter apart."""
        self._philox = np.random.Philox(key=key, counter=index << 64)
        self._words: list[float] = []
        self._at = 0

    def uniform(self) -> float:
        """In [0, 1), a multiple of 2**-53."""
        if self._at == len(self._words):
            self._words = ((self._philox.random_raw(_BLOCK) >> np.uint64(11)) * 2.0**-53).tolist()
            self._at = 0
        self._at += 1
        return self._words[self._at - 1]

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        return int(self.uniform() * n)

    def chance(self, p: float) -> bool:
        """True with probability `p`."""
        return self.uniform() < p

    def between(self, low: float, high: float) -> float:
        """In [low, high)."""
        return low + (high - low) * self.uniform()

    def pick(self, items: Sequence[T]) -> T:
        """One of `items`, all alike."""
        return items[int(self.uniform() * len(items))]

    def normal(self) -> float:
        """Near-normal: the sum of four uniforms, mean 0, variance 1, within 3.47; always four draws."""
        return (self.uniform() + self.uniform() + self.uniform() + self.uniform() - 2.0) * _SQRT3

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A new list in random order (Fisher-Yates, one draw an item)."""
        out = list(items)
        for i in range(len(out) - 1, 0, -1):
            j = self.below(i + 1)
            out[i], out[j] = out[j], out[i]
        return out

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` distinct items (all of them where there are fewer), in random order."""
        out = list(items)
        count = min(count, len(out))
        for i in range(count):
            j = i + self.below(len(out) - i)
            out[i], out[j] = out[j], out[i]
        return out[:count]
