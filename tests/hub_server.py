"""A Hub on loopback: as much of it as huggingface_hub and datasets use to publish and to load a dataset, LFS uploads included.

Repositories live in memory as lists of commits; a commit is a whole tree, so every state that ever was visible can be asked for. Faults
are injected per request: an answer instead of the real one, or a call (to lose a race, or to kill the client) before or after it.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LFS = re.compile(r".*\.(parquet|png|arrow)")
PAGE = 5
"""Entries of a page of the tree: few, so that paging is always used."""


@dataclass(frozen=True)
class Blob:
    data: bytes
    lfs: bool

    @property
    def sha256(self):
        return hashlib.sha256(self.data).hexdigest()

    @property
    def oid(self):
        data = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\n".encode() if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def entry(self, path):
        lfs = {"lfs": {"oid": self.sha256, "size": len(self.data), "pointerSize": 134}} if self.lfs else {}
        return {"type": "file", "path": path, "oid": self.oid, "size": len(self.data)} | lfs


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    tree: dict[str, Blob]
    summary: str


@dataclass
class Repo:
    private: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pulls: dict[str, str] = field(default_factory=dict)

    def commit(self, tree, parent, summary):
        text = json.dumps([parent, summary, len(self.commits), sorted((path, blob.oid) for path, blob in tree.items())])
        made = Commit(hashlib.sha1(text.encode()).hexdigest(), parent, tree, summary)
        self.commits[made.oid] = made
        return made

    def find(self, revision):
        refs = {**self.branches, **self.tags, **{f"refs/pr/{number}": oid for number, oid in self.pulls.items()}}
        refs |= {f"refs/heads/{name}": oid for name, oid in self.branches.items()} | {f"refs/convert/{name}": None for name in ()}
        return self.commits.get(refs.get(revision, revision))

    def change(self, branch="main", **files):
        """Commit files (name with `__` for `/` and `_dot_` for `.`) by somebody else; None deletes."""
        names = {name.replace("__", "/").replace("_dot_", "."): data for name, data in files.items()}
        tree = dict(self.find(branch).tree)
        for name, data in names.items():
            tree.pop(name, None)
            if data is not None:
                tree[name] = Blob(data, bool(LFS.fullmatch(name)))
        self.branches[branch] = self.commit(tree, self.branches[branch], "by hand").oid

    def files(self, revision="main"):
        return {path: blob.data for path, blob in self.find(revision).tree.items()}


@dataclass
class Fault:
    """What happens to requests that match: `METHOD path`."""

    pattern: str
    status: int | None = None
    times: int = 1
    skip: int = 0
    message: str = "injected"
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    """Called once the request is done and before it is answered."""
    drop: bool = False
    """Do what is asked and close the connection without an answer."""


class Hub:
    """The server; `with Hub() as hub:` runs it in a thread."""

    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.tokens = {"hf_test_write_token": "write", "hf_test_read_token": "read"}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.hook: Callable[[str, str], None] | None = None
        self.quota: int | None = None
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def make(self, name, private=False):
        repo = Repo(private=private)
        repo.branches["main"] = repo.commit({".gitattributes": Blob(b"*.parquet filter=lfs\n", False)}, None, "initial commit").oid
        self.repos[name] = repo
        return repo

    def fault(self, pattern, status=None, **options):
        self.faults.append(Fault(pattern, status, **options))

    def asked(self, pattern):
        return [line for line in self.requests if re.search(pattern, line)]


class RefusedError(Exception):
    def __init__(self, status, code="", message="", body=None):
        super().__init__(message)
        self.status, self.code, self.message, self.body = status, code, message, body


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    ROUTES = (
        ("GET", r"/api/whoami-v2", "whoami"),
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate"),
        ("POST", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/preupload/(?P<revision>[^/]+)", "preupload"),
        ("POST", r"/datasets/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
        ("PUT", r"/lfs/upload/(?P<oid>\w+)", "upload"),
        ("POST", r"/lfs/verify/(?P<oid>\w+)", "verify"),
        ("POST", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/commit/(?P<revision>[^/]+)", "commit"),
        ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/refs", "refs"),
        ("POST", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/tag/(?P<revision>[^/]+)", "tag"),
        ("POST", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/branch/(?P<branch>[^/]+)", "branch"),
        ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)(/(?P<path>.+))?", "tree"),
        ("POST", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/paths-info/(?P<revision>[^/]+)", "paths_info"),
        ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?", "info"),
        ("GET", r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
    )

    def log_message(self, *_):
        pass

    def _serve(self):
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b"".join(iter(self._chunk, b""))
        line = f"{self.command} {parts.path}"
        hub = self.hub
        with hub.lock:
            hub.requests.append(line)
            fault = next((fault for fault in hub.faults if re.search(fault.pattern, line) and fault.times > 0), None)
            if fault is not None and fault.skip > 0:
                fault.skip -= 1
                fault = None
            if fault is not None:
                fault.times -= 1
        if hub.hook is not None:
            hub.hook("before", line)
        if fault is not None and fault.before is not None:
            fault.before()
        if fault is not None and fault.status is not None:
            self._send(fault.status, {"error": fault.message}, fault.headers | {"X-Error-Message": fault.message})
            return
        try:
            with hub.lock:
                answer = self._route(parts.path, body)
        except RefusedError as refused:
            code = {"X-Error-Code": refused.code} if refused.code else {}
            answer = (refused.status, refused.body or {"error": refused.message}, code | {"X-Error-Message": refused.message})
        if hub.hook is not None:
            hub.hook("after", line)
        if fault is not None and fault.after is not None:
            fault.after()
        if fault is not None and fault.drop:
            self.close_connection = True
            return
        self._send(*answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - so the standard library names them

    def _chunk(self):
        size = int(self.rfile.readline().split(b";")[0], 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _send(self, status, body=b"", headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self.send_response(status)
            headers = {"Content-Length": str(len(data)), "Content-Type": "application/json"} | (headers or {})
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)
        except OSError:
            self.close_connection = True

    def _route(self, path, body):
        for method, pattern, name in self.ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == ("GET" if self.command == "HEAD" else self.command):
                found = {key: unquote(value) if value else value for key, value in match.groupdict().items()}
                return getattr(self, f"_do_{name}")(body, **found)
        raise RefusedError(404, "", f"no such page: {path}")

    def _role(self):
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token:
            return None
        if token not in self.hub.tokens:
            raise RefusedError(401, "", "Invalid credentials in Authorization header")
        return self.hub.tokens[token]

    def _writer(self):
        if self._role() is None:
            raise RefusedError(401, "RepoNotFound", "Invalid username or password.")
        if self._role() != "write":
            raise RefusedError(403, "", "you must use a write token")

    def _repo(self, name):
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self._role() is None):
            raise RefusedError(404 if self._role() else 401, "RepoNotFound", "Repository not found")
        return repo

    def _found(self, repo, revision):
        commit = self._repo(repo).find(revision)
        if commit is None:
            raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _do_whoami(self, _):
        role = self._role()
        if role is None:
            raise RefusedError(401, "", "Invalid credentials in Authorization header")
        return 200, {"type": "user", "name": "user", "orgs": [], "auth": {"type": "access_token", "accessToken": {"role": role}}}

    def _do_create(self, body):
        self._writer()
        asked = json.loads(body)
        name = f"{asked.get('organization') or 'user'}/{asked['name']}"
        if not name.startswith("user/"):
            raise RefusedError(403, "", "You don't have the rights to create a dataset under this namespace")
        url = {"url": f"{self.hub.url}/datasets/{name}"}
        if name in self.hub.repos:
            raise RefusedError(409, "", "You already created this dataset repo", url)
        self.hub.make(name, asked.get("private") or asked.get("visibility") == "private")
        return 200, url

    def _do_validate(self, _):
        return 200, {"errors": [], "warnings": []}

    def _do_preupload(self, body, repo, revision):
        self._writer()
        tree = self._found(repo, revision).tree
        answers = []
        for file in json.loads(body)["files"]:
            path = file["path"]
            known = {"oid": tree[path].sha256 if tree[path].lfs else tree[path].oid} if path in tree else {}
            answers.append({"path": path, "uploadMode": "lfs" if LFS.fullmatch(path) else "regular", "shouldIgnore": False} | known)
        return 200, {"files": answers}

    def _do_batch(self, body, repo):
        self._writer()
        self._repo(repo)
        objects = []
        for wanted in json.loads(body)["objects"]:
            oid = wanted["oid"]
            if self.hub.quota is not None and sum(map(len, self.hub.lfs.values())) + wanted["size"] > self.hub.quota:
                objects.append({"oid": oid, "size": wanted["size"], "error": {"code": 403, "message": "Storage limit reached"}})
                continue
            actions = {name: {"href": f"{self.hub.url}/lfs/{name}/{oid}", "header": {}} for name in ("upload", "verify")}
            objects.append({"oid": oid, "size": wanted["size"]} | ({} if oid in self.hub.lfs else {"actions": actions}))
        return 200, {"transfer": "basic", "objects": objects}

    def _do_upload(self, body, oid):
        if hashlib.sha256(body).hexdigest() != oid:
            raise RefusedError(400, "", "the content is not what was announced")
        self.hub.lfs[oid] = body
        return 200, b""

    def _do_verify(self, body, oid):
        if len(self.hub.lfs.get(oid, b"")) != json.loads(body)["size"]:
            raise RefusedError(404, "EntryNotFound", "not uploaded")
        return 200, {}

    def _do_commit(self, body, repo, revision):
        self._writer()
        found = self._repo(repo)
        parent = self._found(repo, revision)
        lines = [json.loads(line) for line in body.splitlines()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        if header.get("parentCommit") not in (None, parent.oid):
            raise RefusedError(412, "", "A commit has happened since. Please refresh and try again.")
        tree = dict(parent.tree)
        for line in lines:
            self._apply(tree, line["key"], line["value"])
        made = found.commit(tree, parent.oid, header["summary"])
        answer = {"commitOid": made.oid, "commitUrl": f"{self.hub.url}/datasets/{repo}/commit/{made.oid}", "success": True}
        if self.query.get("create_pr") == "1":
            number = str(len(found.pulls) + 1)
            found.pulls[number] = made.oid
            return 200, answer | {"pullRequestUrl": f"{self.hub.url}/datasets/{repo}/discussions/{number}"}
        if revision.startswith("refs/pr/"):
            found.pulls[revision.removeprefix("refs/pr/")] = made.oid
        else:
            found.branches[revision] = made.oid
        return 200, answer

    def _apply(self, tree, key, value):
        match key:
            case "file":
                tree[value["path"]] = Blob(base64.b64decode(value["content"]), False)
            case "lfsFile":
                if value["oid"] not in self.hub.lfs:
                    raise RefusedError(400, "", f"LFS object {value['oid']} is missing")
                tree[value["path"]] = Blob(self.hub.lfs[value["oid"]], True)
            case "deletedFile":
                if value["path"] not in tree:
                    raise RefusedError(404, "EntryNotFound", "A file with this name doesn't exist")
                del tree[value["path"]]

    def _do_refs(self, _, repo):
        found = self._repo(repo)

        def listed(refs, kind):
            return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": oid} for name, oid in refs.items()]

        pulls = {"pullRequests": listed(found.pulls, "pr")} if self.query.get("include_prs") else {}
        return 200, {"branches": listed(found.branches, "heads"), "tags": listed(found.tags, "tags"), "converts": []} | pulls

    def _do_tag(self, body, repo, revision):
        self._writer()
        name = json.loads(body)["tag"]
        tags = self._repo(repo).tags
        if name in tags:
            raise RefusedError(409, "", f"Tag reference exists already: {name}")
        tags[name] = self._found(repo, revision).oid
        return 200, {}

    def _do_branch(self, body, repo, branch):
        self._writer()
        branches = self._repo(repo).branches
        if branch in branches:
            raise RefusedError(409, "", "Reference already exists")
        branches[branch] = self._found(repo, json.loads(body or b"{}").get("startingPoint", "main")).oid
        return 200, {}

    def _do_info(self, _, repo, revision):
        commit = self._found(repo, revision or "main")
        siblings = [{"rfilename": path} for path in sorted(commit.tree)]
        return 200, {"_id": "1", "id": repo, "sha": commit.oid, "private": self._repo(repo).private, "siblings": siblings, "tags": []}

    def _do_tree(self, _, repo, revision, path):
        commit = self._found(repo, revision)
        entries = self._entries(commit.tree, path or "", self.query.get("recursive", "").lower() in ("true", "1"))
        if path and not entries:
            raise RefusedError(404, "EntryNotFound", f"{path} does not exist")
        start = int(self.query.get("cursor", 0))
        page = entries[start : start + PAGE]
        link = {}
        if start + PAGE < len(entries):
            options = "".join(f"&{name}={value}" for name, value in self.query.items() if name != "cursor")
            link = {"Link": f'<{self.hub.url}{urlsplit(self.path).path}?cursor={start + PAGE}{options}>; rel="next"'}
        return 200, page, link

    @staticmethod
    def _entries(tree, folder, recursive):
        prefix = f"{folder}/" if folder else ""
        entries = {}
        for path, blob in sorted(tree.items()):
            if path.startswith(prefix):
                parts = path.removeprefix(prefix).split("/")
                for depth in range(1, len(parts)) if recursive else range(1, min(2, len(parts))):
                    name = prefix + "/".join(parts[:depth])
                    entries[name] = {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0}
                if recursive or len(parts) == 1:
                    entries[path] = blob.entry(path)
        return list(entries.values())

    def _do_paths_info(self, body, repo, revision):
        commit = self._found(repo, revision)
        text = body.decode()
        paths = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
        everything = {entry["path"]: entry for entry in self._entries(commit.tree, "", True)}
        return 200, [
            everything[path.strip("/")] for path in ([paths] if isinstance(paths, str) else paths) if path.strip("/") in everything
        ]

    def _do_resolve(self, _, repo, revision, path):
        commit = self._found(repo, revision)
        blob = commit.tree.get(path)
        if blob is None:
            raise RefusedError(404, "EntryNotFound", f"{path} does not exist")
        etag = f'"{blob.sha256 if blob.lfs else blob.oid}"'
        headers = {"ETag": etag, "X-Repo-Commit": commit.oid, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if blob.lfs:
            headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(len(blob.data))}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            return 200, blob.data, headers
        stop = min(int(asked[2]) + 1 if asked[2] else len(blob.data), len(blob.data))
        part = blob.data[int(asked[1]) : stop]
        return 206, part, headers | {"Content-Range": f"bytes {asked[1]}-{stop - 1}/{len(blob.data)}"}
