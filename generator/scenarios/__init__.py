"""The four ways a team is organised: each module has one `play(stage)` that reads like a screenplay. Order feeds sampling."""

from collections.abc import Callable, Mapping
from typing import Final

from generator.scenarios import campaign, dispatch, parallel_sweep, pipeline
from generator.stage import Stage

SCENARIOS: Final[Mapping[str, Callable[[Stage], None]]] = {
    "dispatch": dispatch.play,
    "parallel_sweep": parallel_sweep.play,
    "pipeline": pipeline.play,
    "campaign": campaign.play,
}
