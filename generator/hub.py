"""Publication of a finished build: one commit of whatever differs, then a tag; the repository shows the old release or the new, never both.

The plan compares the folder with the repository at one commit; the commit names that as its parent, so whoever came in between wins and
nothing of theirs is lost. Contents go up first, in pieces the Hub keeps, so a push that was cut short goes on where it stopped.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import huggingface_hub
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

from generator import manifest, remote
from generator.card import tag_name
from generator.errors import HubError
from generator.publication import LOOSE, NAME, File, Outcome, Plan, Request, changes, collect, message, pieces

MAIN: Final = "main"

Progress = Callable[[str, int, int], None]
"""Told of a stage, the bytes done and the bytes in all."""


def push(request: Request, progress: Progress = lambda *_: None, api: HfApi | None = None) -> Outcome:
    """Publish a build.

    Args:
        request: What and where.
        progress: Told after each piece.
        api: A client with a token; by default the one of HF_ENDPOINT and the token of HF_TOKEN or `hf auth login`.

    Raises:
        InputError: There is no build, or it lacks what was asked for.
        DataError: The build is incomplete, altered, or not what viewers and readers take.
        HubError: The Hub refuses or cannot be reached; nothing is half published.
    """
    made, files = collect(request.folder, request.jsonl)
    token = require_token(api)
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    return _Push(request=request, api=api or HfApi(token=token), token=token, progress=progress).run(made, files)


def require_token(api: HfApi | None = None) -> str:
    """The token of the client, or that of HF_TOKEN or `hf auth login`. Raises HubError if there is none."""
    token = huggingface_hub.get_token() if api is None else api.token
    if not isinstance(token, str) or not token:
        raise HubError("no token for the Hub", None, "a token with the role write", "run `hf auth login` or set HF_TOKEN")
    return token


@dataclass(slots=True, kw_only=True)
class _Push:
    """One push under way."""

    request: Request
    api: HfApi
    token: str
    progress: Progress
    repo: str = NAME

    def run(self, made: manifest.Manifest, files: Sequence[File]) -> Outcome:
        self.repo = self._name()
        plan = self._plan(made, files)
        url = f"{self.api.endpoint}/datasets/{self.repo}"
        if self.request.dry_run:
            return Outcome(state="planned", plan=plan, url=url, commit=plan.parent)
        commit = parent = self._prepare(plan)
        if not plan.empty:
            commit, url = self._publish(plan, parent, files)
        if plan.tag is not None:
            self._tag(plan.tag, commit, files)
        return Outcome(state="unchanged" if plan.empty else "pushed", plan=plan, url=url, commit=commit)

    def call(self, doing: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A call to the Hub, tried again while that helps. What fails for good is raised as HubError."""
        try:
            return remote.retrying(lambda: function(*args, **options))
        except HubError:
            raise
        except Exception as error:
            raise remote.told(error, doing, self.repo, self.token) from error

    def _name(self) -> str:
        me = self.call("asking who you are", self.api.whoami)
        if me.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise HubError("the token may only read", me["name"], "a token with the role write", "make one at hf.co/settings/tokens")
        return self.request.repo_id or f"{me['name']}/{NAME}"

    def _plan(self, made: manifest.Manifest, files: Sequence[File]) -> Plan:
        revision = self.request.revision or MAIN
        name = tag_name(made)
        wanted = None if self.request.create_pr else name
        private = self.call("looking at the repository", self._private)
        if private is None:
            if self.request.create_pr:
                raise HubError("no repository to open a pull request in", self.repo, "one that exists", "leave --create-pr out")
            return Plan(repo_id=self.repo, revision=revision, parent=None, branches=revision != MAIN, adds=tuple(files), tag=wanted)
        if self.request.private and not private:
            what, allowed = "--private, but the repository is public", "a private or a new one"
            raise HubError(what, self.repo, allowed, "make it private in its settings or leave --private out")
        heads, tags = self._refs()
        if revision in tags:
            raise HubError("--revision is a tag", revision, f"a branch: {', '.join(heads)}", "tags never move")
        branches = revision not in heads and not revision.startswith("refs/")
        if branches and self.request.create_pr:
            raise HubError("no branch to open a pull request against", revision, ", ".join(heads), "leave --revision out")
        parent = self._head(MAIN if branches else revision)
        there = self._tree(parent)
        self._check_scripts(there)
        if name in tags:
            self._check_tag(name, tags[name], files)
            wanted = None
        return Plan(repo_id=self.repo, revision=revision, parent=parent, branches=branches, tag=wanted, **changes(files, there))

    def _private(self) -> bool | None:
        """Whether the repository is private; None if there is none."""
        try:
            return bool(self.api.repo_info(self.repo, repo_type="dataset").private)
        except RepositoryNotFoundError:
            return None

    def _refs(self) -> tuple[dict[str, str], dict[str, str]]:
        """Commits of the branches and of the tags."""
        refs = self.call("listing branches and tags", self.api.list_repo_refs, self.repo, repo_type="dataset")
        heads, tags = ({ref.name: str(ref.target_commit) for ref in kind} for kind in (refs.branches, refs.tags))
        return heads, tags

    def _head(self, revision: str) -> str:
        return str(self.call("looking at the branch", self.api.repo_info, self.repo, repo_type="dataset", revision=revision).sha)

    def _tree(self, revision: str) -> dict[str, RepoFile]:
        """Every file of the repository at a commit."""

        def listed() -> dict[str, RepoFile]:
            found = self.api.list_repo_tree(self.repo, recursive=True, revision=revision, repo_type="dataset")
            return {file.path: file for file in found if isinstance(file, RepoFile)}

        tree: dict[str, RepoFile] = self.call("listing the repository", listed)
        return tree

    def _check_scripts(self, there: Iterable[str]) -> None:
        scripts = [name for name in there if name.endswith(".py") and "/" not in name]
        if scripts:
            what = "the repository holds a script at its root, which makes `load_dataset` refuse it"
            raise HubError(what, scripts[0], "none", f"delete it on the Hub, {self.repo} is for data alone")

    def _check_tag(self, name: str, commit: str, files: Sequence[File]) -> None:
        """Raise HubError if the tag has other content."""
        found = changes(files, self._tree(commit))
        names = [*(file.name for file in (*found["adds"], *found["changes"])), *found["deletes"]]
        differing = [file for file in names if not LOOSE.fullmatch(file)]
        if differing:
            what, allowed = f"the tag {name} is there with other content", "the files that the tag has"
            raise HubError(what, differing[0], allowed, "raise DATASET_VERSION in schema/version.py and build again")

    def _prepare(self, plan: Plan) -> str:
        """Make repository and branch where they are missing; returns the commit to build on."""
        if plan.parent is None:
            options = {"repo_type": "dataset", "private": self.request.private or None, "exist_ok": True}
            self.call("making the repository", self.api.create_repo, self.repo, **options)
        parent = plan.parent or self._head(MAIN)
        if plan.branches:
            options = {"branch": plan.revision, "revision": parent, "repo_type": "dataset", "exist_ok": True}
            self.call("making the branch", self.api.create_branch, self.repo, **options)
        return parent

    def _publish(self, plan: Plan, parent: str, files: Sequence[File]) -> tuple[str, str]:
        """Send the contents, then the one commit that shows them. Returns the commit and its page."""
        before = set(self._candidates(plan))
        additions = {file.name: CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=str(file.path)) for file in plan.sends}
        options: dict[str, Any] = {"repo_type": "dataset", "revision": plan.revision, "create_pr": self.request.create_pr}
        done = 0
        self.progress("upload", done, plan.bytes)
        for piece in pieces(plan.sends):
            sent = [additions[file.name] for file in piece]
            self.call("uploading", self.api.preupload_lfs_files, self.repo, additions=sent, free_memory=False, **options)
            done += sum(file.size for file in piece)
            self.progress("upload", done, plan.bytes)
        operations: list[Any] = [*additions.values(), *(CommitOperationDelete(path_in_repo=name) for name in plan.deletes)]
        options |= {"commit_message": message(plan), "parent_commit": parent}
        tried = False

        def commit() -> tuple[str, str]:
            nonlocal tried
            landed = self._landed(plan, before, files) if tried else None
            tried = True
            if landed is not None:
                return landed
            made = self.api.create_commit(self.repo, operations, **options)
            return str(made.oid), str(getattr(made, "pr_url", None) or f"{self.api.endpoint}/datasets/{self.repo}")

        try:
            commit_and_page: tuple[str, str] = self.call("committing", commit)
        except HubError:
            landed = self._landed(plan, before, files)
            if landed is None:
                raise
            return landed
        return commit_and_page

    def _candidates(self, plan: Plan) -> dict[tuple[str, str], str]:
        """Commits at which this push may have arrived, each with its page, by ref and commit."""
        page = f"{self.api.endpoint}/datasets/{self.repo}"
        if not self.request.create_pr:
            return {(plan.revision, self._head(plan.revision)): page}
        options = {"repo_type": "dataset", "include_pull_requests": True}
        refs = self.call("listing pull requests", self.api.list_repo_refs, self.repo, **options)
        return {(ref.ref, str(ref.target_commit)): f"{page}/discussions/{ref.ref.rsplit('/', 1)[-1]}" for ref in refs.pull_requests or ()}

    def _landed(self, plan: Plan, before: set[tuple[str, str]], files: Sequence[File]) -> tuple[str, str] | None:
        """Commit and page of this push if it is there although the Hub's answer was lost or was a failure."""
        try:
            for (ref, commit), page in self._candidates(plan).items():
                found = changes(files, self._tree(commit)) if (ref, commit) not in before else None
                if found is not None and not (found["adds"] or found["changes"] or found["deletes"]):
                    return commit, page
        except HubError:
            pass
        return None

    def _tag(self, name: str, commit: str, files: Sequence[File]) -> None:
        """Set the tag; another push may have set it meanwhile, but then with the same content."""
        options = {"tag": name, "revision": commit, "repo_type": "dataset", "exist_ok": True}
        self.call("setting the tag", self.api.create_tag, self.repo, **options)
        _, tags = self._refs()
        if tags.get(name, commit) != commit:
            self._check_tag(name, tags[name], files)
