"""Least error by simplex search (Nelder and Mead) over the logarithms of positive constants: plain NumPy, no derivatives, no draws."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Bounds = Mapping[str, tuple[float, float]]


def minimise(
    error: Callable[[dict[str, float]], float], start: Mapping[str, float], bounds: Bounds, steps: int, size: float = 0.2
) -> tuple[dict[str, float], float]:
    """Constants of least `error` near `start`, and that error. Outside `bounds` the error grows with the distance; the answer is inside."""
    names = tuple(start)
    low, high = (np.log([bounds[name][side] for name in names]) for side in (0, 1))

    def inside(x: Vector) -> dict[str, float]:
        return dict(zip(names, np.exp(np.clip(x, low, high)).tolist(), strict=True))

    def cost(x: Vector) -> float:
        return error(inside(x)) + float(np.abs(x - np.clip(x, low, high)).sum())

    best, _ = _simplex(cost, np.log(np.array([start[name] for name in names])), steps, size)
    found = inside(best)
    return found, error(found)


def _simplex(cost: Callable[[Vector], float], start: Vector, steps: int, size: float) -> tuple[Vector, float]:
    corners = [start, *(start + size * axis for axis in np.eye(len(start)))]
    values = [cost(x) for x in corners]
    for _ in range(steps):
        order = np.argsort(values, kind="stable")
        corners, values = [corners[i] for i in order], [values[i] for i in order]
        if values[-1] - values[0] < 1e-7:
            break
        centre = np.mean(corners[:-1], axis=0)
        away = centre - corners[-1]
        x, value = _best(cost, centre, away, values)
        if value < values[-1]:
            corners[-1], values[-1] = x, value
            continue
        corners = [corners[0], *(corners[0] + 0.5 * (x - corners[0]) for x in corners[1:])]
        values = [values[0], *(cost(x) for x in corners[1:])]
    least = int(np.argmin(values))
    return corners[least], values[least]


def _best(cost: Callable[[Vector], float], centre: Vector, away: Vector, values: list[float]) -> tuple[Vector, float]:
    """The reflected, stretched or shrunken worst corner."""
    mirrored = centre + away
    value = cost(mirrored)
    if value < values[0]:
        stretched = centre + 2.0 * away
        other = cost(stretched)
        return (stretched, other) if other < value else (mirrored, value)
    if value < values[-2]:
        return mirrored, value
    shrunken = centre + (0.5 if value < values[-1] else -0.5) * away
    other = cost(shrunken)
    return (shrunken, other) if other < value else (mirrored, value)
