"""parallel_sweep: after a short scout each of 4-20 workers owns a slice of the strongest variant's params; the top two refine."""

from generator.stage import Stage
from generator.team import slices

SCOUTS = 3
SWEEP = 12.0
"""Tries the whole team shares in the sweep, and the top two in the refinement."""
REFINE = 5.0
NEIGHBOURS = 10


def play(stage: Stage) -> None:
    """One campaign."""
    land, team = stage.land, stage.team
    stage.open("parallel_sweep")
    scouts = [(agent, land.start[name]) for agent, name in zip(team, reversed(land.ladder[-SCOUTS:]), strict=False)]
    for agent, point in scouts:
        stage.ask(agent, [point])
    stage.run(*(stage.work(agent, 1) for agent, _ in scouts))
    stage.merge()
    variant = stage.top.variant.name if stage.top else land.ladder[-1]
    for agent, region in zip(team, slices(land.legal.get(variant, land.legal[land.ladder[-1]]), len(team)), strict=True):
        stage.ask(agent, region)
    stage.run(*(stage.work(agent, stage.share(SWEEP, len(team))) for agent in team))
    leaders = stage.board()[:2] or team[:2]
    stage.merge()
    for agent in leaders:
        if stage.top is not None:
            stage.ask(agent, land.near(stage.top)[:NEIGHBOURS])
    stage.run(*(stage.work(agent, stage.share(REFINE, len(leaders))) for agent in leaders))
    stage.merge()
    stage.verdict()
