"""The text of each message kind: terse, true to the numbers beside it, in several phrasings chosen by the prose stream.

No phrase draws a fact: what happened, and every number, is handed in. Rewording one therefore never moves a measurement. Only the phrasing
that is drawn is written out: numbers take longer to print than to simulate.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from generator import costmodel, facts
from generator.facts import Check, Compiled
from generator.ops.base import Flaw, Variant
from generator.rng import Dice
from generator.task import Landscape, Point, shape_text

SEPARATOR: Final = " · "
"""Between the entries of a leaderboard."""


def ms(time_ms: float) -> str:
    """A time to four significant digits, never in scientific notation."""
    text = f"{time_ms:#.4g}"
    return f"{time_ms:.0f}" if "e" in text else text.rstrip(".")


def percent(part: float, whole: float) -> str:
    """`part` over `whole` in whole per cent."""
    return f"{100.0 * part / whole:.0f}%"


def error(value: float) -> str:
    """An error to two significant digits."""
    return f"{value:.2g}"


def built(made: Compiled) -> str:
    """What the compiler reports: `118 regs, 4352 B smem, 0 spills`."""
    spills = f"{made.spills} B spilled" if made.spills else "0 spills"
    return f"{made.registers} regs, {made.smem} B smem, {spills}"


def measured(check: Check, tolerance: float) -> str:
    """How far results are from the reference: `max_rel_err 0.00071 (tol 0.01)`."""
    return f"max_rel_err {error(check.error)} (tol {tolerance:g})" if check.error is not None else f"non-finite values (tol {tolerance:g})"


def finding(check: Check, tolerance: float) -> str:
    """What caught a wrong result: the error and the inputs that showed it, or the tool's words."""
    if check.kind == facts.NUMERIC:
        return f"{measured(check, tolerance)} on {check.case} inputs"
    return check.message


def named(point: Point) -> str:
    """Variant and tunables: `split_kv block_n=64 splits=8`."""
    return f"{point.variant.name} {point.label}"


def sweep(points: Sequence[Point]) -> str:
    """What a region of one variant spans: `splits=4,8,16 at block_n=64`."""
    values = {name: sorted({p.params[name] for p in points}) for name in points[0].params}
    moving = " ".join(f"{name}={','.join(map(str, some))}" for name, some in values.items() if len(some) > 1)
    fixed = " ".join(f"{name}={some[0]}" for name, some in values.items() if len(some) == 1)
    return f"{moving} at {fixed}" if moving and fixed else moving or fixed


def plan(dice: Dice, scenario: str, land: Landscape, n: int) -> str:
    """The campaign's split strategy, what is expected to win and why; the first words are the original dataset's."""
    task = land.task
    names = land.ladder
    strongest = task.op.variant(names[-1])
    listed = ", ".join(names)
    ways: Mapping[str, tuple[str, ...]] = {
        "dispatch": (
            f"split {len(names)} variants across {n} agents, merge best, redirect losers",
            f"{n} agents over {listed}; merge the best, move the rest to the winner's variant",
            f"one variant per agent ({listed}), merge, then two rounds around the winner",
        ),
        "parallel_sweep": (
            f"{n}-agent parallel cfg sweep on strongest variant, leaderboard merge, top-2 refine",
            f"scout the default points, then {n} slices of the fastest variant; top two refine",
            "short scout, then sweep of the fastest variant in slices; top-2 refine",
        ),
        "pipeline": (
            "proposer -> review -> verify -> tune pipeline over variants",
            f"climb {' -> '.join(names)}; review before bench, verify what counts, then tune",
            f"three rungs up the ladder ({listed}), reviewer ahead of the bench, tuner last",
        ),
        "campaign": (
            f"fleet of {n} over variant x cfg, verifier re-benches leaders before each merge",
            f"two waves over {listed}, re-bench, then all around the winner",
            f"{n} agents in waves over {len(names)} variants, a re-bench before each merge",
        ),
    }
    bound = costmodel.floor_bound(task.gpu, task.op.work(task.shape))
    why = (
        f"the floor of {ms(land.floor_ms)} ms is set by {bound}, so {strongest.name} ({strongest.idea}) should come nearest",
        f"expecting {strongest.name}: {strongest.idea}; floor {ms(land.floor_ms)} ms from {bound}",
        f"{strongest.name} is the one to beat: {strongest.idea}, against a floor of {ms(land.floor_ms)} ms ({bound})",
    )
    return f"campaign: {task.op.name} {task.gpu.name} {shape_text(task.shape)}. plan: {dice.pick(ways[scenario])}; {dice.pick(why)}"


def baseline_result(dice: Dice, point: Point, time_ms: float, floor_ms: float, tolerance: float) -> str:
    share = percent(floor_ms, time_ms)
    made, right = _evidence(point, tolerance)
    match dice.below(3):
        case 0:
            return (
                f"baseline {point.variant.name}: ok {made}; verify {right}; {ms(time_ms)} ms median of 100 (cold L2), "
                f"{share} of floor rate. floor {ms(floor_ms)} ms"
            )
        case 1:
            time = f"{ms(time_ms)} ms, cold L2, median of 100"
            return f"baseline {named(point)}: verify {right}, {time}; {made}; floor {ms(floor_ms)} ms ({share})"
    time = f"{point.variant.name} at {ms(time_ms)} ms, {share} of floor rate, floor {ms(floor_ms)} ms"
    return f"ok {made}; {right}; {time}, bound by {point.bound}"


def dispatch(dice: Dice, to: str, variant: Variant, span: str, target_ms: float) -> str:
    """`span` is the region as `sweep` words it."""
    match dice.below(4):
        case 0:
            return f"{to}: take {variant.name}, sweep {span}; report anything under {ms(target_ms)} ms"
        case 1:
            return f"{to}: {variant.name} ({variant.idea}), points {span}; beat {ms(target_ms)} ms"
        case 2:
            return f"{to}: your slice is {variant.name} {span}. to beat: {ms(target_ms)} ms"
    return f"{to}: explore {variant.name} at {span}; tell me what moves it"


def redirect(dice: Dice, to: str, was: Variant, best_ms: float | None, span: str, winner: Point, shared_ms: float) -> str:
    """Where an agent goes and why; `was` is the variant it leaves, which may be the winner's already."""
    variant = winner.variant
    mine = f" ({ms(best_ms)})" if best_ms is not None else ""
    leave = f"stay on {variant.name}" if was is variant else f"drop {was.name}{mine}, join {variant.name}"
    match dice.below(3):
        case 0:
            return f"{to}: {leave}, which leads with {ms(shared_ms)} at {winner.label}, bound by {winner.bound}; vary {span}"
        case 1:
            return f"{to}: {leave}: {variant.idea} gives {ms(shared_ms)}; try {span}"
    return f"{to}: {leave} around the shared best {winner.label} ({ms(shared_ms)} ms, {winner.bound}-bound): {span}"


def status(dice: Dice, done: int, budget: int, best_ms: float | None, best: Point | None, following: Point) -> str:
    left = f"{done} of {budget} points done"
    if best is None or best_ms is None:
        return dice.pick((f"{left}, nothing kept yet; next {named(following)}", f"{left}; no win so far, trying {following.label}"))
    held = f"best {ms(best_ms)} ({best.variant.name})"
    moves = " ".join(f"{k}={v}" for k, v in following.params.items() if best.params.get(k) != v or best.variant is not following.variant)
    match dice.below(3):
        case 0:
            return f"{left}, best {ms(best_ms)} at {best.label}; trying {moves or named(following)}"
        case 1:
            return f"{left}; {held}, next {following.label}"
    return f"{held} after {done} of {budget}; next {named(following)}"


def _evidence(point: Point, tolerance: float) -> tuple[str, str]:
    """What the compiler made of a point that ran, and how right it was."""
    assert point.compiled is not None
    assert point.check is not None
    return built(point.compiled), measured(point.check, tolerance)


def kept(dice: Dice, time_ms: float, prev_best: float, floor_ms: float, tolerance: float, point: Point) -> str:
    share = percent(floor_ms, time_ms)
    made, right = _evidence(point, tolerance)
    match dice.below(4):
        case 0:
            return f"ok {made}; verify {right}; {ms(time_ms)} ms (was {ms(prev_best)}), {share} of floor rate, bound by {point.bound}"
        case 1:
            return f"ok {made}; {right}; {ms(time_ms)} ms median of 100, cold L2; {prev_best / time_ms:.2f}x over {ms(prev_best)}"
        case 2:
            return f"verify {right}; kept: {ms(prev_best)} -> {ms(time_ms)} ms, {share} of floor rate; {made}"
    return f"compiled: {made}; {right}; {ms(time_ms)} ms beats {ms(prev_best)}; {point.bound}-bound at {share} of floor rate"


def no_improvement(dice: Dice, time_ms: float, prev_best: float, tolerance: float, point: Point) -> str:
    made, right = _evidence(point, tolerance)
    match dice.below(4):
        case 0:
            return f"ok {made}; verify {right}; {ms(time_ms)} ms, best stays {ms(prev_best)}"
        case 1:
            return f"verify {right}; {ms(time_ms)} ms median of 100, no gain over {ms(prev_best)}; {made}"
        case 2:
            return f"ok {made}; {right}; {ms(time_ms)} ms, {time_ms / prev_best:.2f}x the best {ms(prev_best)}; bound by {point.bound}"
    return f"compiled: {made}; {right}; {ms(time_ms)} ms, not kept, {ms(prev_best)} holds"


def launch_failure(dice: Dice, point: Point) -> str:
    """What the runtime says of a kernel that compiled and cannot be launched; the prefix is fixed, it is parsed."""
    assert point.compiled is not None
    problem = "invalid argument" if "shared memory" in point.reason else "too many resources requested for launch"
    made = built(point.compiled)
    return "launch failure: " + dice.pick((f"{problem}; {point.reason}; compiled to {made}", f"{point.reason} ({problem}); {made}"))


def wrong_result(dice: Dice, flaw: Flaw, point: Point, check: Check, tolerance: float) -> str:
    """What the check that caught it says, and what it means."""
    found = finding(check, tolerance)
    tool = _TOOLS.get(check.kind, "verify")
    match dice.below(3):
        case 0:
            return f"{tool} FAIL: {found}: {flaw.symptom}"
        case 1:
            return f"compiles; {tool} FAIL: {found}; {flaw.symptom}"
    return f"{tool} FAIL at {point.label}: {found}; {flaw.symptom}; not benched"


_TOOLS: Final = {"race": "racecheck", "bounds": "memcheck", "misaligned": "memcheck", "deadlock": "synccheck", "trap": "synccheck"}
"""The tool that reports a class of fault."""


def unsupported(dice: Dice, point: Point, arch: str) -> str:
    """The compiler's words, and what they mean."""
    match dice.below(3):
        case 0:
            return f"{point.diagnostic}; needs {point.reason}, which {arch} lacks"
        case 1:
            return f"unsupported on {arch}: {point.diagnostic}"
    return f"{point.diagnostic} (no {point.reason} on {arch})"


def review_fail(dice: Dice, point: Point, flaw: Flaw | None, prev_best: float) -> str:
    """Why a reviewer stops a candidate; on an honest one it is only an opinion."""
    if flaw is not None:
        return f"fail: {flaw.slip}"
    if point.fate == "illegal":
        return f"fail: {point.reason}; {point.label} will not compile"
    if point.fate == "launch":
        return f"fail: will not launch, {point.reason}"
    if point.fate == "unsupported":
        return f"fail: {point.variant.name} needs {point.reason}, which this board lacks"
    match dice.below(2):
        case 0:
            return f"fail: {point.label} is not worth a bench against {ms(prev_best)}"
    return f"fail: I expect no gain over {ms(prev_best)} from {point.label}; send another"


def review_pass(dice: Dice, point: Point) -> str:
    match dice.below(4):
        case 0:
            return "pass: bounds and barriers look right"
        case 1:
            return f"pass: {point.label} is legal, indexing checked"
        case 2:
            return f"pass: {point.variant.name} reads clean, tail handled"
    return "pass: no objection, bench it"


def verify_pass(dice: Dice, check: Check, tolerance: float, time_ms: float | None = None) -> str:
    """Confirms a candidate, with a re-bench where one was made."""
    bench = f"; re-bench {ms(time_ms)} ms" if time_ms is not None else ""
    right = measured(check, tolerance)
    return dice.pick(
        (f"pass: {right} on ragged and adversarial inputs{bench}", f"pass: matches reference, {right}{bench}", f"pass, {right}{bench}")
    )


def verify_fail(dice: Dice, flaw: Flaw, check: Check, tolerance: float) -> str:
    found = finding(check, tolerance)
    return dice.pick(
        (
            f"fail: confirmed, {found}; {flaw.symptom}",
            f"fail: {flaw.symptom}; cause: {flaw.slip}",
            f"fail: reproduced, {found}; {flaw.slip}",
        )
    )


def leaderboard(ranking: Sequence[tuple[str, float | None, str]]) -> str:
    """`1 a02 0.2140 split_kv · 2 a04 0.2391 split_kv · a03 -`: always this form, it is parsed."""
    places = [f"{i} {who} {ms(best)} {variant}" for i, (who, best, variant) in enumerate(ranking, 1) if best is not None]
    return SEPARATOR.join(places + [f"{who} -" for who, best, _ in ranking if best is None])


def merge(dice: Dice, who: str, point: Point, time_ms: float, shared_ms: float) -> str:
    match dice.below(3):
        case 0:
            return f"merge {who}: {named(point)}, {ms(time_ms)} ms; shared best was {ms(shared_ms)}"
        case 1:
            return f"merged {who}'s {point.variant.name} ({point.label}): {ms(shared_ms)} -> {ms(time_ms)} ms"
    return f"new shared best {ms(time_ms)} ms from {who}: {named(point)}"


def no_merge(dice: Dice, shared_ms: float) -> str:
    return dice.pick(
        (f"nothing to merge, shared best stays {ms(shared_ms)} ms", f"no agent beat {ms(shared_ms)} ms; shared best unchanged")
    )


def exhausted(dice: Dice, done: int) -> str:
    return dice.pick((f"nothing left to try after {done} points", f"all points sent, stopping after {done}"))


def handoff(dice: Dice, to: str, point: Point, best_ms: float) -> str:
    match dice.below(3):
        case 0:
            return f"to {to}: {named(point)} at {ms(best_ms)} ms, please tune"
        case 1:
            return f"to {to}: {point.variant.name} verified, {ms(best_ms)} ms; vary its neighbours"
    return f"to {to}: take {point.variant.name} from {point.label} ({ms(best_ms)} ms)"


def verdict(dice: Dice, baseline_ms: float, best_ms: float, floor_ms: float, point: Point, who: str | None) -> str:
    """The final outcome; `who` is None when nothing beat the baseline."""
    if who is None:
        return f"done: nothing beat the baseline {ms(baseline_ms)} ms; {named(point)} stays"
    share = percent(floor_ms, best_ms)
    match dice.below(3):
        case 0:
            return (
                f"done: {ms(baseline_ms)} -> {ms(best_ms)} ms, {baseline_ms / best_ms:.2f}x, {named(point)} ({who}); {share} of floor rate"
            )
        case 1:
            return f"done: {named(point)} by {who}, {ms(best_ms)} ms, {baseline_ms / best_ms:.2f}x over baseline, bound by {point.bound}"
    return f"done: {ms(best_ms)} ms ({baseline_ms / best_ms:.2f}x) with {point.variant.idea}, {point.label}, from {who}"
