"""pipeline: proposer, reviewer, verifier and tuner climb the ladder of variants, three rungs from weakest to strongest, with handoffs.

A reviewer may stop a bad candidate before it costs a bench. Without a tuner (three specialists) the first proposer tunes.
"""

from generator.stage import Stage

RUNGS = 3
PROPOSE = 3.3
"""Tries all proposers share on a rung, and all tuners after it."""
TUNE = 2.6
QUICK = 0.6
"""A tuner's thinking time over a proposer's."""


def play(stage: Stage) -> None:
    """One campaign."""
    land = stage.land
    stage.open("pipeline")
    proposers, (reviewer,), (verifier,) = stage.crew("worker"), stage.crew("reviewer"), stage.crew("verifier")
    tuners = stage.crew("tuner") or proposers[:1]
    for rung in range(RUNGS):
        variant = land.ladder[rung * (len(land.ladder) - 1) // (RUNGS - 1)]
        for agent in proposers:
            stage.ask(agent, land.legal[variant])
        stage.run(*(stage.propose(agent, reviewer, verifier, stage.share(PROPOSE, len(proposers))) for agent in proposers))
        best = next(iter(stage.ranking()), None)
        if best is not None and best.best is not None and best.best.variant.name == variant:
            for tuner in tuners:
                if tuner is not best:
                    stage.hand_over(best, tuner)
            stage.merge()
            stage.run(*(stage.work(tuner, stage.share(TUNE, len(tuners)), QUICK) for tuner in tuners))
        stage.merge()
    stage.board()
    stage.verdict()
