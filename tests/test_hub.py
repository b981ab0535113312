import copy
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path

import hub_client
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import Hub

from generator import cli, hub, manifest, publication, remote
from generator.build import Request as BuildRequest
from generator.build import build
from generator.card import tag_name
from generator.errors import DataError, HubError, InputError
from generator.parquet import ENCODING
from generator.publication import Request, collect
from generator.release import Release
from schema.arrow import EPISODES

ROOT = Path(__file__).parents[1]
REPO = "user/kernelswarm"
TOKEN = "hf_test_write_token"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=")  # huggingface_hub's own
LINE = re.compile(r"[^\n]+, got [^\n]+, allowed: [^\n]+, [^\n]+")


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """The tests are offline but for the loopback, which has no Xet; nobody waits."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("time.sleep", lambda _: None)


@pytest.fixture
def server():
    with Hub() as found:
        yield found


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Another release, of one shard and without validation."""
    out = tmp_path_factory.mktemp("small") / "kernelswarm"
    build(BuildRequest(out=out, release=Release(seed=2, episodes=8, validation=0)))
    return out


def push(server, folder, token=TOKEN, **options):
    return hub.push(Request(folder=folder, **options), api=huggingface_hub.HfApi(endpoint=server.url, token=token))


def content(folder, with_jsonl=False):
    return {file.name: file.path.read_bytes() for file in collect(folder, with_jsonl)[1]}


def visible(server, revision="main"):
    files = server.repos[REPO].files(revision)
    return {name: data for name, data in files.items() if name != ".gitattributes"}


def test_a_push_is_one_commit_and_a_tag(server, export):
    outcome = push(server, export)
    repo = server.repos[REPO]
    assert outcome.state == "pushed"
    assert outcome.url == f"{server.url}/datasets/{REPO}"
    assert [commit.summary for commit in repo.commits.values()] == ["initial commit", publication.message(outcome.plan)]
    assert visible(server) == content(export)
    assert not repo.private
    assert repo.tags == {f"v{manifest.read(export)['dataset_version']}-{manifest.read(export)['digest'][:8]}": outcome.commit}
    assert not [name for name in visible(server) if name.startswith("jsonl/") or name.endswith(".py")]


def test_an_unchanged_build_makes_no_commit(server, export):
    first = push(server, export)
    commits = len(server.repos[REPO].commits)
    again = push(server, export)
    assert (again.state, again.commit, again.plan.unchanged) == ("unchanged", first.commit, len(content(export)))
    assert len(server.repos[REPO].commits) == commits
    assert len(server.asked("PUT")) == len([name for name in content(export) if name.endswith((".parquet", ".png"))])


def test_a_smaller_build_leaves_no_stale_shard(server, export, small):
    push(server, export, jsonl=True)
    assert visible(server) == content(export, with_jsonl=True)
    server.repos[REPO].change(LICENSE=b"theirs", default__extra_dot_parquet=b"theirs")
    outcome = push(server, small)
    assert "default/train-00001-of-00003.parquet" in outcome.plan.deletes
    assert {name.split("/")[0] for name in outcome.plan.deletes} == {"default", "jsonl"}
    assert visible(server) == content(small) | {"LICENSE": b"theirs"}
    assert len(server.repos[REPO].tags) == 2


def test_jsonl_goes_only_if_asked_for_and_is_refused_if_absent(server, small):
    with pytest.raises(InputError, match="--jsonl"):
        push(server, small, jsonl=True)
    assert server.requests == []


def test_a_dry_run_changes_nothing(server, export, small):
    planned = push(server, export, dry_run=True)
    assert (planned.state, planned.plan.parent, len(planned.plan.adds)) == ("planned", None, len(content(export)))
    assert server.repos == {}
    push(server, export)
    before = copy.deepcopy(server.repos)
    planned = push(server, small, dry_run=True)
    assert planned.plan.changes
    assert planned.plan.deletes
    assert planned.plan.tag
    assert server.repos == before


@pytest.mark.parametrize("private", [False, True])
def test_a_new_repository_is_private_if_asked(server, small, private):
    push(server, small, repo_id="user/other", private=private)
    assert server.repos["user/other"].private is private


def test_private_never_goes_to_a_public_repository(server, small):
    server.make(REPO)
    with pytest.raises(HubError, match="is public"):
        push(server, small, private=True)


def test_a_branch_is_made_and_main_stays(server, export, small):
    push(server, export)
    outcome = push(server, small, revision="next")
    assert visible(server) == content(export)
    assert visible(server, "next") == content(small)
    assert server.repos[REPO].tags[outcome.plan.tag] == outcome.commit
    assert push(server, small, revision="next").state == "unchanged"


def test_a_pull_request_is_opened_without_a_tag(server, export, small):
    push(server, export)
    outcome = push(server, small, create_pr=True)
    assert outcome.url == f"{server.url}/datasets/{REPO}/discussions/1"
    assert visible(server) == content(export)
    assert visible(server, "refs/pr/1") == content(small)
    assert len(server.repos[REPO].tags) == 1


@pytest.mark.parametrize("options", [{"revision": "nowhere"}, {"repo_id": "user/none"}])
def test_a_pull_request_needs_something_to_go_to(server, export, options):
    server.make(REPO)
    with pytest.raises(HubError, match="to open a pull request"):
        push(server, export, create_pr=True, **options)


def test_the_tag_of_the_default_release_is_plain():
    made = {"release": Release().key(), "dataset_version": "1.2.3", "digest": "0123456789abcdef"}
    assert tag_name(made) == "v1.2.3"
    for other in (Release(seed=1), Release(episodes=2401), Release(validation=0), Release(gpus=("a10",))):
        assert tag_name(made | {"release": other.key()}) == "v1.2.3-01234567"


def test_a_tag_with_other_content_is_refused(server, export, small):
    outcome = push(server, export)
    repo = server.repos[REPO]
    repo.tags[tag_name(manifest.read(small))] = outcome.commit
    before = copy.deepcopy(repo)
    for options in ({}, {"create_pr": True}):
        with pytest.raises(HubError, match="is there with other content"):
            push(server, small, **options)
    assert server.repos[REPO] == before


def test_a_tag_never_moves(server, export, small):
    first = push(server, export)
    push(server, small)
    back = push(server, export)
    assert back.state == "pushed"
    assert back.plan.tag is None
    assert visible(server) == content(export)
    assert server.repos[REPO].tags[first.plan.tag] == first.commit != back.commit
    with pytest.raises(HubError, match="is a tag"):
        push(server, small, revision=first.plan.tag)


def test_a_script_in_the_repository_is_refused(server, small):
    server.make(REPO).change(kernelswarm_dot_py=b"import datasets")
    with pytest.raises(HubError, match=r"script at its root.*kernelswarm\.py"):
        push(server, small)


def damages(folder):
    yield "incomplete", lambda: (folder / "default/train-00000-of-00001.parquet").unlink()
    yield "altered", lambda: (folder / "default/train-00000-of-00001.parquet").write_bytes(b"PAR1")
    yield "script", lambda: (folder / "kernelswarm.py").write_text("")
    yield "manifest", lambda: (folder / "manifest.json").write_text("{}")
    yield "card", lambda: (folder / "README.md").write_text("# kernelswarm")


@pytest.mark.parametrize("number", range(5))
def test_a_damaged_build_is_refused_before_any_request(server, small, tmp_path, number):
    folder = tmp_path / "kernelswarm"
    subprocess.run(["cp", "-r", small, folder], check=True)
    list(damages(folder))[number][1]()
    with pytest.raises(DataError, match="incomplete or altered"):
        push(server, folder)
    assert server.requests == []


@pytest.mark.parametrize("name", ["kernelswarm", "a/b/c", "user/", "user/..", "user/a--b", "us er/x", ""])
def test_bad_names_are_refused(small, name):
    with pytest.raises(InputError, match="--repo-id"):
        Request(folder=small, repo_id=name)


@pytest.mark.parametrize("name", ["", "-x", "a b", "../x"])
def test_bad_branches_are_refused(small, name):
    with pytest.raises(InputError, match="--revision"):
        Request(folder=small, revision=name)


def test_no_build_is_refused(server, tmp_path):
    with pytest.raises(InputError, match="no build here"):
        push(server, tmp_path)


@pytest.mark.parametrize(
    ("token", "said"), [("hf_test_read_token", "only read"), ("hf_somebody_elses", "does not accept the token"), ("", "no token")]
)
def test_bad_tokens_are_one_line_and_never_told(server, small, token, said):
    server.make(REPO)
    with pytest.raises(HubError, match=said) as caught:
        push(server, small, token=token)
    assert LINE.fullmatch(str(caught.value))
    assert not token or token not in str(caught.value)


def test_another_account_is_refused(server, small):
    with pytest.raises(HubError, match="no right to write"):
        push(server, small, repo_id="somebody/kernelswarm")
    assert server.repos == {}


def test_what_the_hub_repeats_of_the_token_is_struck_out(server, small):
    server.fault("commit", 400, message=f"bad header Bearer {TOKEN}", times=9)
    with pytest.raises(HubError) as caught:
        push(server, small)
    assert "***" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_a_full_quota_is_told_and_nothing_is_published(server, export, small):
    push(server, small)
    server.quota = sum(map(len, server.lfs.values())) + 1000
    with pytest.raises(HubError, match="no storage left") as caught:
        push(server, export)
    assert LINE.fullmatch(str(caught.value))
    assert visible(server) == content(small)
    server.quota = None
    assert push(server, export).state == "pushed"


def test_no_hub_is_one_line(small):
    with Hub() as gone:
        pass
    with pytest.raises(HubError, match="cannot reach the Hub") as caught:
        push(gone, small)
    assert LINE.fullmatch(str(caught.value))


EVERY = ["whoami", "GET .*kernelswarm$", "refs", "tree/", "preupload", "objects/batch", "PUT /lfs", "verify/", "commit/", "tag/"]


@pytest.mark.parametrize(("step", "status"), [*zip(EVERY, itertools.cycle([429, 500, 503])), ("commit/", 429), ("commit/", 503)])
def test_a_fault_that_passes_is_overcome(server, export, small, step, status):
    push(server, export)
    server.fault(step, status, times=2, headers={"Retry-After": "1"} if status == 429 else {})
    outcome = push(server, small)
    assert visible(server) == content(small)
    assert server.repos[REPO].tags[outcome.plan.tag] == outcome.commit
    assert len(server.repos[REPO].commits) == 3


@pytest.mark.parametrize("step", [step for step in EVERY if step != "verify/"])  # what was put is there, verified or not
def test_a_fault_that_stays_is_one_line_and_nothing_between(server, export, small, step):
    push(server, export)
    server.fault(step, 502, times=10_000)
    with pytest.raises(HubError, match="keeps failing") as caught:
        push(server, small)
    assert LINE.fullmatch(str(caught.value))
    assert visible(server) == content(small if step == "tag/" else export)
    server.faults.clear()
    outcome = push(server, small)
    assert visible(server) == content(small)
    assert outcome.plan.tag in server.repos[REPO].tags


@pytest.mark.parametrize("options", [{}, {"create_pr": True}, {"revision": "next"}])
def test_a_commit_whose_answer_is_lost_is_not_made_twice(server, export, small, options):
    push(server, export)
    server.fault("commit/", drop=True)
    outcome = push(server, small, **options)
    repo = server.repos[REPO]
    assert len(repo.commits) == 3
    assert len(repo.pulls) == len([1 for name in options if name == "create_pr"])
    assert repo.commits[outcome.commit].tree.keys() - {".gitattributes"} == content(small).keys()


@pytest.mark.parametrize("step", ["preupload", "objects/batch", "commit/"])
def test_whoever_comes_in_between_wins(server, export, small, step):
    push(server, export)
    server.fault(step, before=lambda: server.repos[REPO].change(LICENSE=b"theirs"))
    with pytest.raises(HubError, match="somebody else changed") as caught:
        push(server, small)
    assert LINE.fullmatch(str(caught.value))
    assert visible(server) == content(export) | {"LICENSE": b"theirs"}
    push(server, small)
    assert visible(server) == content(small) | {"LICENSE": b"theirs"}


def test_two_pushes_at_once_leave_one_of_the_two(server, export, small):
    server.make(REPO)
    found = {}

    def run(name, folder):
        try:
            found[name] = push(server, folder).state
        except HubError as error:
            found[name] = str(error)

    threads = [threading.Thread(target=run, args=item) for item in {"export": export, "small": small}.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "pushed" in found.values()
    assert visible(server) in [content(folder) for folder in (export, small)]
    assert all(state == "pushed" or "somebody else changed" in state for state in found.values())


def test_a_tag_set_by_another_push_is_compared(server, export, small):
    push(server, export)
    repo, name = server.repos[REPO], tag_name(manifest.read(small))
    server.fault("tag/", before=lambda: repo.tags.update({name: repo.branches["main"]}))
    assert push(server, small).state == "pushed"
    other = server.make("user/other")
    server.fault("tag/", before=lambda: other.tags.update({name: next(iter(other.commits))}))
    with pytest.raises(HubError, match="is there with other content"):
        push(server, small, repo_id="user/other")


def test_pieces_go_up_once(server, export, monkeypatch):
    monkeypatch.setattr(publication, "PIECE_FILES", 2)
    server.make(REPO)
    server.fault("PUT /lfs", 400, skip=3, times=10_000)
    with pytest.raises(HubError, match="the Hub refuses while uploading"):
        push(server, export)
    sent = set(server.lfs)
    assert len(sent) == 3
    assert visible(server) == {}
    server.faults.clear()
    server.requests.clear()
    told = []
    hub.push(Request(folder=export), lambda *line: told.append(line), huggingface_hub.HfApi(endpoint=server.url, token=TOKEN))
    assert not [line for line in server.asked("PUT") if line.rsplit("/", 1)[1] in sent]
    assert len(server.asked("commit/")) == 1
    assert visible(server) == content(export)
    assert [line[1] for line in told] == sorted({line[1] for line in told})
    assert told[-1] == ("upload", told[-1][2], told[-1][2])
    assert len(told) == 1 + -(-len(content(export)) // 2)


def test_pieces_are_cut_by_files_and_by_bytes(small, monkeypatch):
    files = [publication.File(name=str(i), path=small, size=10, sha256="") for i in range(7)]
    monkeypatch.setattr(publication, "PIECE_FILES", 3)
    assert [len(piece) for piece in publication.pieces(files)] == [3, 3, 1]
    monkeypatch.setattr(publication, "PIECE_BYTES", 25)
    assert [len(piece) for piece in publication.pieces(files)] == [2, 2, 2, 1]
    monkeypatch.setattr(publication, "PIECE_BYTES", 5)
    assert [len(piece) for piece in publication.pieces(files)] == [1] * 7


def test_waits_grow_and_the_hub_is_obeyed(monkeypatch):
    class BusyError(OSError):
        response = types.SimpleNamespace(status_code=429, headers={"Retry-After": "7"})

    waits = []
    monkeypatch.setattr("time.sleep", waits.append)

    def busy():
        raise BusyError

    with pytest.raises(BusyError):
        remote.retrying(busy)
    assert waits == [7, 7, 16]
    BusyError.response.headers = {}
    waits.clear()
    with pytest.raises(BusyError):
        remote.retrying(busy)
    assert waits == list(remote.WAITS)


def test_a_fault_of_this_program_is_not_told_as_one_of_the_hub():
    with pytest.raises(KeyError):
        raise remote.told(KeyError("x"), "testing", REPO, None)


@pytest.fixture
def command(server, capsys, monkeypatch):
    """Runs the command line against the test Hub, with a token in the environment."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def run(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert TOKEN not in out + err
        return code, out, err

    return run


def test_push_says_what_it_does(server, command, small):
    code, out, err = command("push", small, "--dry-run")
    assert code == 0
    assert "upload" not in err
    assert f"{REPO}: dry run, nothing was changed; would be {len(content(small))} added" in out
    assert all(name in out for name in content(small))
    code, out, err = command("push", small)
    assert code == 0
    assert f"{REPO}: pushed, {len(content(small))} added" in out
    assert err.splitlines()[-1].startswith("upload: ")
    code, out, err = command("push", small)
    assert code == 0
    assert "upload" not in err
    assert "already holds this build, no commit was made" in out


def test_build_and_push(server, command, tmp_path, small):
    options = ("--out", tmp_path / "kernelswarm", "--episodes", 8, "--validation", 0, "--seed", 2, "--workers", 1)
    code, out, _ = command("build", *options, "--push", "--repo-id", "user/other", "--private", "--revision", "next")
    assert code == 0
    assert "user/other: pushed" in out
    assert server.repos["user/other"].private
    assert server.repos["user/other"].files("next")["manifest.json"] == content(small)["manifest.json"]
    assert list(server.repos["user/other"].files()) == [".gitattributes"]


def test_no_token_is_told_before_the_build(server, command, tmp_path, small, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    for arguments in (("build", "--out", tmp_path / "new", "--push"), ("push", small)):
        code, out, err = command(*arguments)
        assert (code, out) == (3, "")
        assert re.fullmatch(rf"error: {LINE.pattern}\n", err)
        assert "hf auth login" in err
    assert not (tmp_path / "new").exists()
    assert server.requests == []


def test_labels_are_checked_before_a_push(server, command, small, tmp_path):
    folder = tmp_path / "kernelswarm"
    shutil.copytree(small, folder)
    path = folder / "default/train-00000-of-00001.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[3]["speedup"] *= 2
    pq.write_table(pa.Table.from_pylist(rows, schema=EPISODES), path, **ENCODING)
    made = (folder / "manifest.json").read_text()
    old = manifest.read(folder)["configs"]["default"]["train"]["shards"][0]
    made = made.replace(old["sha256"], hashlib.sha256(path.read_bytes()).hexdigest())
    (folder / "manifest.json").write_text(made.replace(f'"bytes": {old["bytes"]}', f'"bytes": {path.stat().st_size}'))
    code, out, err = command("push", folder)
    assert (code, out) == (1, "")
    assert "labels do not follow from the rows" in err
    assert server.requests == []


@pytest.mark.parametrize("option", ["--repo-id=a/b", "--private", "--revision=x", "--create-pr", "--dry-run"])
def test_options_of_a_push_need_one(command, tmp_path, option):
    code, _, err = command("build", "--out", tmp_path / "new", option)
    assert code == 2
    assert "goes with --push alone" in err
    assert not (tmp_path / "new").exists()


def test_failures_of_the_hub_are_one_line_and_exit_3(server, command, small):
    server.fault("commit", 503, times=10_000)
    code, out, err = command("push", small)
    assert (code, out) == (3, "")
    assert re.fullmatch(rf"error: {LINE.pattern}\n", err.splitlines(keepends=True)[-1])
    assert "Traceback" not in err


@pytest.fixture(scope="module")
def processes():
    """Processes that have imported everything and start at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "0")
        patch.setenv("HF_HUB_DISABLE_XET", "1")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["generator.hub"])
        yield context


def test_killed_at_random_points_the_old_state_or_the_new(server, export, small, processes):
    push(server, export)
    start, objects = copy.deepcopy(server.repos), dict(server.lfs)
    server.requests.clear()
    push(server, small)
    length = len(server.requests)
    states = [content(export), content(small)]
    draw = random.Random(7)
    seen = []
    for place, when in [(draw.randrange(length), draw.choice(["before", "after"])) for _ in range(20)]:
        server.repos, server.lfs = copy.deepcopy(start), dict(objects)
        _kill(server, small, processes, place, when)
        assert all(_tree(commit) in states for commit in server.repos[REPO].commits.values() if commit.parent)
        assert visible(server) in states
        seen.append(states.index(visible(server)))
        sent = set(server.lfs)
        server.requests.clear()
        push(server, small)
        assert visible(server) == content(small)
        assert len(server.repos[REPO].commits) == 3
        assert tag_name(manifest.read(small)) in server.repos[REPO].tags
        assert not [line for line in server.asked("PUT") if line.rsplit("/", 1)[1] in sent]
    assert set(seen) == {0, 1}


def _kill(server, folder, processes, place, when):
    """Push in a process that is killed before or after the Hub's work on request number `place`."""
    child = processes.Process(target=hub_client.push, args=(server.url, str(folder), {}))
    dead = threading.Event()
    server.requests.clear()

    def hook(moment, _):
        if moment == when and len(server.requests) == place + 1 and not dead.is_set():
            os.kill(child.pid, signal.SIGKILL)
            dead.set()

    server.hook = hook
    child.start()
    child.join(60)
    server.hook = None
    assert dead.is_set()
    assert child.exitcode == -signal.SIGKILL
    with server.lock:
        pass


def _tree(commit):
    return {name: blob.data for name, blob in commit.tree.items() if name != ".gitattributes"}


def load(server, home):
    command = [sys.executable, str(ROOT / "tests/hub_client.py"), "both", REPO]
    environment = hub_client.environment(home, server.url) | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


def stated(folder):
    return {
        f"{config}/{split}": [found["rows"], found["digest"]]
        for config, splits in manifest.read(folder)["configs"].items()
        for split, found in splits.items()
    }


def test_push_load_push_smaller_load(server, export, small, tmp_path):
    push(server, export)
    loaded, streamed = load(server, tmp_path)
    assert loaded == streamed == stated(export)
    push(server, small)
    loaded, streamed = load(server, tmp_path)
    assert loaded == streamed == stated(small)
