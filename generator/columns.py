"""What each column means, in a phrase: the card and the docs print these beside the types of the schema.

Names and types come from `schema.arrow`; a test holds the two together, so a column without a meaning, or a meaning without a column,
cannot be published.
"""

from typing import Final

EPISODE: Final = {
    "episode_id": "unique: `{op}_{gpu}_{shape}_{scenario}_{num_messages}`; repeats end `-r1`, `-r2`, ..., validation `-v`, `-v1`, ...",
    "scenario": "how the team is organised",
    "n_agents": "specialists, the lead not counted",
    "op": "the kernel being optimised",
    "impl": "language of its sources: `cuda` or `triton`",
    "gpu": "the board",
    "arch": "its compile target",
    "dtype": "element type of the op's main operands",
    "shape": "sizes of the axes of this workload; null where the op has no such axis",
    "baseline_ms": "measured time of the baseline, in ms",
    "best_ms": "least kept time, in ms; `baseline_ms` if nothing was kept",
    "speedup": "`baseline_ms / best_ms`",
    "elapsed_s": "seconds from the start to the verdict",
    "agents": "the team, the lead first",
    "num_messages": "length of `messages`",
    "messages": "the transcript, in order of time",
    "task_id": "`{op}_{gpu}_{shape}`",
    "floor_ms": "physical lower bound of this workload on this board, in ms; no time is below it",
    "seed": "seed of the release",
    "index": "number of the episode; with seed and split it determines the row",
    "dataset_version": "version of the data",
}

AGENT: Final = {
    "id": "`lead`, `a01`, `a02`, ...",
    "role": "what the agent does",
    "skill": "around 1; higher means fewer slips and better choices",
    "tries": "candidates that reached the environment, the baseline aside",
    "kept": "tries that beat the best time the agent had to beat",
    "best_ms": "least kept time of the agent, in ms; null if none",
}

MESSAGE: Final = {
    "role": "role of the sender, or `env`",
    "agent": "id of the sender",
    "kind": "see the kinds below",
    "content": "the text; the full source in a `candidate`",
    "t": "seconds since the campaign began",
    "reward": "see the rewards below; 0 for all other messages",
    "to": "id of the addressee; null means everyone",
    "subtask": "what the addressee is to do",
    "reply_to": "index, from 0, of the message this one answers",
    "variant": "the algorithm of a candidate or winner",
    "params": "its tunables; null where the variant has no such tunable",
    "status": "outcome of a candidate",
    "time_ms": "a measured time, in ms",
    "passed": "whether a review or a check passed",
    "max_rel_err": "greatest error `|y - r| / (1 + |r|)` against the reference `r`, where the source ran to its end",
}

TASK: Final = {
    "task_id": "`{op}_{gpu}_{shape}`",
    "op": "the kernel to optimise",
    "impl": "language of its sources",
    "gpu": "the board",
    "arch": "its compile target",
    "dtype": "element type of the op's main operands",
    "shape": "sizes of the axes; null where the op has no such axis",
    "baseline_ms": "noiseless time of the baseline, in ms",
    "floor_ms": "physical lower bound, in ms",
    "best_known_ms": "least noiseless time of any legal candidate, in ms",
    "best_known_speedup": "`baseline_ms / best_known_ms`",
    "kind": "`unseen_triple`: op, gpu and shape each occur in training, not together; `unseen_shape`: the shape occurs nowhere in training",
    "prompt": "the task, stated to a policy",
}
