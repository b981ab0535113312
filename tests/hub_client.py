"""What tests run in processes of their own: a push that may be killed, and loading as a user would."""

import json
import os
import sys


def push(url, folder, options):
    """Push a folder to a test Hub."""
    from pathlib import Path

    from huggingface_hub import HfApi

    from generator import hub, publication

    hub.push(publication.Request(folder=Path(folder), **options), api=HfApi(endpoint=url, token="hf_test_write_token"))


def load(name, streaming):
    """Rows and digest of every split of both configs, as `load_dataset(name)` gives them."""
    import pyarrow as pa
    from datasets import load_dataset

    from generator.digest import table_digest
    from schema.arrow import CONFIGS

    found = {}
    for config, schema in CONFIGS.items():
        for split, dataset in load_dataset(name, config, streaming=streaming).items():
            rows = dataset if streaming else dataset.with_format("arrow")[:]
            table = pa.Table.from_pylist(list(rows), schema=schema) if streaming else rows.combine_chunks().cast(schema)
            found[f"{config}/{split}"] = [table.num_rows, table_digest(table)]
    return found


def resume(name):
    """Digest of the training rows of a stream that is stopped in the middle and goes on from its state."""
    import pyarrow as pa
    from datasets import load_dataset

    from generator.digest import table_digest
    from schema.arrow import CONFIGS

    schema = CONFIGS["default"]
    stream = load_dataset(name, split="train", streaming=True)
    rows = []
    for row in stream:
        rows.append(row)
        if len(rows) == 37:
            break
    state = json.loads(json.dumps(stream.state_dict()))
    stream = load_dataset(name, split="train", streaming=True)
    stream.load_state_dict(state)
    return {"default/train": [len(rows := rows + list(stream)), table_digest(pa.Table.from_pylist(rows, schema=schema))]}


def script(path):
    """Both configs of the builder, as the script that datasets 3.6 takes."""
    import pyarrow as pa
    from datasets import load_dataset

    from generator.digest import table_digest
    from schema.arrow import CONFIGS

    found = {}
    for config, schema in CONFIGS.items():
        sizes = {"episodes": 68, "validation": 10} if config == "default" else {}
        for split, dataset in load_dataset(path, config, trust_remote_code=True, **sizes).items():
            table = pa.Table.from_batches(dataset.data.table.to_batches()).cast(schema)
            found[f"{config}/{split}"] = [table.num_rows, table_digest(table)]
    return found


def environment(home, endpoint=None):
    """Environment of a process of its own: a cache of its own, and no network but the test Hub."""
    names = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    names |= {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    names |= {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    return names if endpoint is None else names | {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}


if __name__ == "__main__":
    what, where = sys.argv[1:]
    answer = {
        "load": lambda: load(where, False),
        "stream": lambda: load(where, True),
        "resume": lambda: resume(where),
        "script": lambda: script(where),
        "both": lambda: [load(where, False), load(where, True)],
    }[what]()
    sys.stdout.write(json.dumps(answer) + "\n")
