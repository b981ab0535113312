"""campaign: a fleet of 5-20 is dispatched over variant x params in waves; a verifier re-benches the leaders before each merge."""

from generator.stage import Stage
from generator.team import slices

WAVES = (9.0, 3.0, 6.0)
"""Tries the fleet shares in the first wave (two thirds of it), the second (the rest) and the last (everyone)."""
LEADERS = 2
NEIGHBOURS = 12
BEHIND = 1.05
"""Agents this far behind the shared best are redirected to it."""


def play(stage: Stage) -> None:
    """One campaign."""
    land = stage.land
    stage.open("campaign")
    fleet, (verifier,) = stage.crew("worker"), stage.crew("verifier")
    names = [name for name in reversed(land.ladder) if name != land.baseline.variant.name] or list(land.ladder)
    per_variant = -(-len(fleet) // len(names))
    cells = [part for i in range(per_variant) for name in names for part in [slices(land.legal[name], per_variant)[i]]]
    cut = 2 * len(fleet) // 3
    for wave, (crew, budget) in enumerate(zip((fleet[:cut], fleet[cut:], fleet), WAVES, strict=True)):
        for agent in crew:
            if wave < len(WAVES) - 1:
                stage.ask(agent, cells[fleet.index(agent)])
            elif stage.top is not None and (agent.best_ms is None or agent.best_ms > BEHIND * stage.shared_ms):
                stage.ask(agent, land.near(stage.top)[:NEIGHBOURS])
        stage.run(*(stage.work(agent, stage.share(budget, len(crew))) for agent in crew))
        stage.run(stage.recheck(verifier, stage.ranking()[:LEADERS]))
        if wave > 0:
            stage.board()
        stage.merge()
    stage.verdict()
