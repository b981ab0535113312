"""dispatch: the lead splits the variants across 2-8 workers, merges the best, and redirects the losers to the winner's variant."""

from generator.stage import Stage

OPENING = 10.5
"""Tries the whole team shares in the first round, and in each of the two after it."""
REFINE = 4.0
NEIGHBOURS = 10


def play(stage: Stage) -> None:
    """One campaign."""
    land, team = stage.land, stage.team
    stage.open("dispatch")
    for i, agent in enumerate(team):
        stage.ask(agent, land.legal[land.ladder[-1 - i % len(land.ladder)]])
    stage.run(*(stage.work(agent, stage.share(OPENING, len(team))) for agent in team))
    stage.board()
    stage.merge()
    for _ in range(2):
        if stage.top is None:
            break
        for agent in team:
            if agent.best is not stage.top:
                stage.ask(agent, land.near(stage.top)[:NEIGHBOURS])
        stage.run(*(stage.work(agent, stage.share(REFINE, len(team))) for agent in team))
        stage.merge()
    stage.verdict()
