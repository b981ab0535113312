"""The questions of the README, asked with four libraries: the answers must be the same."""

import re
from collections import Counter
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[1]
QUERIES = re.findall(r"```sql\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
COLUMNS = {"winners": ["op", "gpu", "variant", "wins"], "skill": ["skill", "agents", "reward"], "mix": ["scenario", "kind", "messages"]}


def with_duckdb(folder):
    answers = [duckdb.sql(query.replace("kernelswarm/default", f"{folder}/default")) for query in QUERIES]
    assert [answer.columns for answer in answers] == list(COLUMNS.values())
    return dict(zip(COLUMNS, [answer.fetchall() for answer in answers], strict=True))


def with_polars(folder):
    rows = pl.read_parquet(f"{folder}/default/train-*.parquet")
    wins = (
        rows.select("op", "gpu", variant=pl.col("messages").list.last().struct.field("variant"))
        .group_by("op", "gpu", "variant")
        .len("wins")
    )
    winners = (
        wins.sort("op", "gpu", "wins", "variant", descending=[False, False, True, False]).group_by("op", "gpu", maintain_order=True).first()
    )
    messages = rows.select("episode_id", "scenario", "messages").explode("messages").unnest("messages")
    agents = rows.select("episode_id", "agents").explode("agents").unnest("agents").select("episode_id", "id", "skill")
    results = messages.filter((pl.col("kind") == "result") & (pl.col("status") != "baseline"))
    earned = results.group_by("episode_id", id="to").agg(pl.col("reward").sum())
    tenth = (pl.col("skill") * 10).floor() / 10
    skill = agents.join(earned, on=["episode_id", "id"]).group_by(skill=tenth).agg(agents=pl.len(), reward=pl.col("reward").mean())
    mix = messages.group_by("scenario", "kind").len("messages")
    answers = {"winners": winners, "skill": skill.sort("skill"), "mix": mix.sort("scenario", "kind")}
    return {name: answer.select(COLUMNS[name]).rows() for name, answer in answers.items()}


def with_pandas(folder):
    rows = pd.concat([pd.read_parquet(path) for path in sorted((folder / "default").glob("train-*.parquet"))])
    rows["variant"] = [messages[-1]["variant"] for messages in rows["messages"]]
    wins = rows.groupby(["op", "gpu", "variant"]).size().rename("wins").reset_index()
    wins = wins.sort_values(["op", "gpu", "wins", "variant"], ascending=[True, True, False, True])
    messages = rows[["episode_id", "scenario", "messages"]].explode("messages", ignore_index=True)
    messages = messages.join(pd.DataFrame(messages["messages"].tolist())[["kind", "status", "to", "reward"]])
    agents = rows[["episode_id", "agents"]].explode("agents", ignore_index=True)
    agents = agents.join(pd.DataFrame(agents["agents"].tolist())[["id", "skill"]])
    results = messages[(messages["kind"] == "result") & (messages["status"] != "baseline")].rename(columns={"to": "id"})
    earned = agents.merge(results.groupby(["episode_id", "id"], as_index=False)["reward"].sum())
    earned["skill"] = np.floor(earned["skill"] * 10) / 10
    skill = earned.groupby("skill", as_index=False).agg(agents=("reward", "size"), reward=("reward", "mean"))
    mix = messages.groupby(["scenario", "kind"], as_index=False).size().rename(columns={"size": "messages"})
    answers = {"winners": wins.groupby(["op", "gpu"], as_index=False).first(), "skill": skill, "mix": mix}
    return {name: [*answer[COLUMNS[name]].itertuples(index=False, name=None)] for name, answer in answers.items()}


def with_pyarrow(folder):
    table = pa.concat_tables([pq.read_table(path) for path in sorted((folder / "default").glob("train-*.parquet"))]).combine_chunks()
    lists = table["messages"].combine_chunks()
    messages, rows = lists.flatten(), lists.value_parent_indices()
    last = pc.subtract(lists.offsets[1:], 1)
    named = pa.table([table["op"], table["gpu"], messages.field("variant").take(last)], ["op", "gpu", "variant"])
    wins = named.group_by(["op", "gpu", "variant"]).aggregate([([], "count_all")]).rename_columns(COLUMNS["winners"])
    wins = wins.sort_by([("op", "ascending"), ("gpu", "ascending"), ("wins", "descending"), ("variant", "ascending")])
    winners = (
        wins.group_by(["op", "gpu"], use_threads=False)
        .aggregate([("variant", "first"), ("wins", "first")])
        .sort_by([("op", "ascending"), ("gpu", "ascending")])
    )
    agents = table["agents"].combine_chunks()
    team = pa.table([agents.value_parent_indices(), agents.flatten().field("id"), agents.flatten().field("skill")], ["row", "id", "skill"])
    log = pa.table(
        [rows, *(messages.field(name) for name in ("kind", "status", "to", "reward"))], ["row", "kind", "status", "id", "reward"]
    )
    results = log.filter((pc.field("kind") == "result") & (pc.field("status") != "baseline"))
    earned = results.group_by(["row", "id"]).aggregate([("reward", "sum")]).join(team, ["row", "id"])
    earned = earned.append_column("tenth", pc.divide(pc.floor(pc.multiply(earned["skill"], 10.0)), 10.0))
    skill = earned.group_by("tenth").aggregate([([], "count_all"), ("reward_sum", "mean")]).sort_by("tenth")
    mix = Counter(zip(table["scenario"].combine_chunks().take(rows).to_pylist(), log["kind"].to_pylist(), strict=True))
    answers = {"winners": winners, "skill": skill}
    found = {name: [*zip(*(column.to_pylist() for column in answer.columns), strict=True)] for name, answer in answers.items()}
    return found | {"mix": [(*key, count) for key, count in sorted(mix.items())]}


@pytest.mark.parametrize("ask", [with_polars, with_pandas, with_pyarrow])
def test_the_answers_are_those_of_duckdb(export, ask):
    expected, found = with_duckdb(export), ask(export)
    for name, rows in expected.items():
        assert rows
        assert len(found[name]) == len(rows)
        for row, other in zip(rows, found[name], strict=True):
            assert other == pytest.approx(row, rel=1e-9) if name == "skill" else other == row


def test_the_answers_are_those_of_the_rows(export, rows):
    found = with_duckdb(export)
    kinds = Counter((row["scenario"], message["kind"]) for row in rows for message in row["messages"])
    assert found["mix"] == [(*key, count) for key, count in sorted(kinds.items())]
    assert sum(row[-1] for row in found["mix"]) == sum(row["num_messages"] for row in rows)
    assert {row[:2] for row in found["winners"]} == {(row["op"], row["gpu"]) for row in rows}
    assert sum(agents for _, agents, _ in found["skill"]) == sum(agent["tries"] > 0 for row in rows for agent in row["agents"])
