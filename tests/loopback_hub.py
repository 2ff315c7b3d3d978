"""A Hub on 127.0.0.1: the parts of its HTTP interface that `huggingface_hub` uses for models and Spaces, kept in memory.

    with LoopbackHub({"hf_token": "ada"}) as hub:
        run with HF_ENDPOINT=hub.url and HF_HUB_DISABLE_XET=1, and look at hub.requests and hub.repos

Commits are all or nothing, large files go through Git LFS to a storage of another origin and are kept by their sha256, private
and gated repositories answer as the real ones do: https://huggingface.co/docs/hub/api.
"""

import base64
import dataclasses
import hashlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


LARGE = (".safetensors", ".png")  # what the .gitattributes of a new repository send to LFS, as far as we need it


@dataclasses.dataclass
class File:
    """`oid` is git's hash of a small file, the sha256 of a large one, which is how the Hub names both to the client."""

    content: bytes
    large: bool

    @property
    def oid(self) -> str:
        if self.large:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


@dataclasses.dataclass
class Commit:
    oid: str
    message: str
    files: dict[str, File]


@dataclasses.dataclass
class Repo:
    name: str
    private: bool = False
    gated: bool = False
    sdk: str | None = None  # of a Space
    commits: dict[str, Commit] = dataclasses.field(default_factory=dict)
    branches: dict[str, str] = dataclasses.field(default_factory=dict)
    large: dict[str, bytes] = dataclasses.field(default_factory=dict)  # LFS objects, in a commit or not yet

    def __post_init__(self):
        self.commit("main", "initial commit", {".gitattributes": File(b"*.safetensors filter=lfs\n", large=False)})

    def commit(self, branch: str, message: str, files: dict[str, File]) -> Commit:
        parent = self.branches.get(branch, "")
        listing = "".join(f"{path} {file.oid}\n" for path, file in sorted(files.items()))
        oid = hashlib.sha1(f"{parent}{message}{listing}".encode()).hexdigest()
        self.commits[oid] = Commit(oid, message, files)
        self.branches[branch] = oid
        return self.commits[oid]

    def at(self, revision: str) -> Commit | None:
        return self.commits.get(self.branches.get(revision, revision))


class Refusal(Exception):
    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.code = status, code


class LoopbackHub:
    """`users` maps tokens to names. `fail` is asked before each request is answered; a status that it returns is the answer."""

    def __init__(self, users: dict[str, str], read_only: tuple[str, ...] = ()):
        self.users, self.read_only = users, read_only  # read_only: tokens that cannot write
        self.repos: dict[str, Repo] = {}
        self.requests: list[tuple[str, str]] = []
        self.fail: Callable[[str, str], int | None] = lambda method, path: None
        self.leaks: list[str] = []  # requests to the storage that came with a token, which is none of its business
        self.lock = threading.Lock()

    def __enter__(self) -> "LoopbackHub":
        handler = type("BoundHandler", (Handler,), {"hub": self})
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        self.url, self.storage = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def seen(self, method: str, pattern: str) -> list[str]:
        """Paths of the requests so far."""
        return [path for kind, path in self.requests if kind == method and re.search(pattern, path)]


API = r"/api/(?:models|spaces)"
SPACES = r"(?:/spaces)?"
REPO = r"(?P<name>[^/]+/[^/]+?)"
REVISION = r"(?P<revision>[^/]+)"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LoopbackHub

    # One line for each thing that can be asked
    ROUTES = [
        ("GET", r"/api/whoami-v2", "whoami"),
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate"),
        ("POST", rf"{API}/{REPO}/preupload/{REVISION}", "preupload"),
        ("POST", rf"{API}/{REPO}/commit/{REVISION}", "commit"),
        ("POST", rf"{API}/{REPO}/branch/{REVISION}", "branch"),
        ("GET", rf"{API}/{REPO}/refs", "refs"),
        ("GET", rf"{API}/{REPO}/tree/{REVISION}(/(?P<path>.*))?", "tree"),
        ("GET", rf"{API}/{REPO}/revision/{REVISION}", "info"),
        ("GET", rf"{API}/{REPO}", "info"),
        ("POST", rf"{SPACES}/{REPO}\.git/info/lfs/objects/batch", "lfs_batch"),
        ("POST", rf"/{REPO}/verify", "lfs_verify"),
        ("PUT", rf"/storage/{REPO}/(?P<oid>\w{{64}})", "store"),
        ("GET", rf"/storage/{REPO}/(?P<oid>\w{{64}})", "fetch"),
        ("HEAD", rf"{SPACES}/{REPO}/resolve/{REVISION}/(?P<path>.*)", "resolve"),
        ("GET", rf"{SPACES}/{REPO}/resolve/{REVISION}/(?P<path>.*)", "resolve"),
    ]

    def answer(self) -> None:
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        body = self.read_body()
        try:
            with self.hub.lock:
                self.hub.requests.append((self.command, parts.path))
                if parts.path.startswith("/storage/") and self.headers.get("Authorization"):
                    self.hub.leaks.append(parts.path)
                if status := self.hub.fail(self.command, parts.path):
                    raise Refusal(status, "out of order")
                for method, pattern, name in self.ROUTES:
                    if method == self.command and (match := re.fullmatch(pattern, parts.path)):
                        words = {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
                        return getattr(self, name)(body, **words)
            raise Refusal(404, f"nothing answers {self.command} {parts.path}")
        except Refusal as refusal:
            headers = {"X-Error-Message": str(refusal), **({"X-Error-Code": refusal.code} if refusal.code else {})}
            self.send(refusal.status, {"error": str(refusal)}, headers)

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def send(self, status: int, content: Any = b"", headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_) -> None:
        pass

    # Who may do what

    @property
    def token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    @property
    def user(self) -> str | None:
        if self.token is not None and self.token not in self.hub.users:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.hub.users.get(self.token) if self.token else None

    def readable(self, name: str) -> Repo:
        repo, owner = self.hub.repos.get(name), name.partition("/")[0]
        if repo is None or (repo.private and self.user != owner):
            raise Refusal(401 if self.user is None else 404, "Repository not found", "RepoNotFound")
        if repo.gated and self.user != owner:
            raise Refusal(401 if self.user is None else 403, f"Access to model {name} is restricted", "GatedRepo")
        return repo

    def writable(self, name: str) -> Repo:
        repo = self.readable(name)
        self.check_writer(name)
        return repo

    def check_writer(self, name: str) -> None:
        if self.user is None:
            raise Refusal(401, "Invalid username or password.")
        if self.user != name.partition("/")[0] or self.token in self.hub.read_only:
            raise Refusal(403, f"You don't have the rights to write to {name}")

    def found(self, repo: Repo, revision: str) -> Commit:
        if (commit := repo.at(revision)) is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    # Answers

    def whoami(self, body: bytes) -> None:
        if self.user is None:
            raise Refusal(401, "Invalid username or password.")
        self.send(200, {"type": "user", "name": self.user, "orgs": [], "auth": {"type": "access_token"}})

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        if self.user is None:
            raise Refusal(401, "Invalid username or password.")
        name = f"{asked['organization'] or self.user}/{asked['name']}"
        if name in self.hub.repos:
            raise Refusal(409, "You already created this model repo")
        self.check_writer(name)
        self.hub.repos[name] = Repo(name, private=asked.get("visibility") == "private", sdk=asked.get("sdk"))
        self.send(200, {"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def validate(self, body: bytes) -> None:
        content = json.loads(body)["content"]
        match = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        try:
            metadata = yaml.safe_load(match[1]) if match else {}
        except yaml.YAMLError as error:
            return self.send(400, {"errors": [{"message": str(error)}], "warnings": []})
        if not isinstance(metadata.get("license", ""), str):
            return self.send(400, {"errors": [{"message": '"license" must be a string'}], "warnings": []})
        warnings = [] if metadata else [{"message": "empty or missing yaml metadata in repo card"}]
        self.send(200, {"errors": [], "warnings": warnings})

    def preupload(self, body: bytes, name: str, revision: str) -> None:
        commit = self.found(self.writable(name), revision)
        answers = []
        for file in json.loads(body)["files"]:
            before = commit.files.get(file["path"])
            answers.append({
                "path": file["path"], "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular", "shouldIgnore": False,
                "oid": before.oid if before else None,
            })  # fmt: skip
        self.send(200, {"files": answers})

    def lfs_batch(self, body: bytes, name: str) -> None:
        repo = self.writable(name)
        answers = []
        for wanted in json.loads(body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in repo.large:
                place = f"{self.hub.storage}/storage/{name}/{wanted['oid']}"
                urls = {"upload": place, "verify": f"{self.hub.url}/{name}/verify"}
                answer["actions"] = {kind: {"href": url} for kind, url in urls.items()}
            answers.append(answer)
        self.send(200, {"transfer": "basic", "objects": answers})

    def store(self, body: bytes, name: str, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refusal(400, "the content has another hash")
        self.hub.repos[name].large[oid] = body
        self.send(200)

    def lfs_verify(self, body: bytes, name: str) -> None:
        asked = json.loads(body)
        if len(self.writable(name).large.get(asked["oid"], b"")) != asked["size"]:
            raise Refusal(404, "this object has not arrived")
        self.send(200, {})

    def commit(self, body: bytes, name: str, revision: str) -> None:
        """Everything is checked before anything is changed."""
        repo = self.writable(name)
        files = dict(self.found(repo, revision).files)
        lines = [json.loads(line) for line in body.splitlines()]
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]), large=False)
            elif line["key"] == "lfsFile":
                if value["oid"] not in repo.large:
                    raise Refusal(400, f"{value['path']} points to an object that has not arrived")
                files[value["path"]] = File(repo.large[value["oid"]], large=True)
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                raise Refusal(400, f"unknown operation {line['key']}")
        made = repo.commit(revision, lines[0]["value"]["summary"], files)
        self.send(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{made.oid}", "commitOid": made.oid, "success": True})

    def branch(self, body: bytes, name: str, revision: str) -> None:
        repo = self.writable(name)
        if revision in repo.branches:
            raise Refusal(409, "Reference already exists")
        repo.branches[revision] = self.found(repo, json.loads(body).get("startingPoint", "main")).oid
        self.send(200, {})

    def refs(self, body: bytes, name: str) -> None:
        branches = self.readable(name).branches.items()
        listed = [{"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": oid} for branch, oid in branches]
        self.send(200, {"branches": listed, "tags": [], "converts": []})

    def info(self, body: bytes, name: str, revision: str = "main") -> None:
        repo = self.readable(name)
        commit = self.found(repo, revision)
        siblings = [{"rfilename": path} for path in commit.files]
        self.send(200, {
            "id": name, "modelId": name, "sha": commit.oid, "private": repo.private, "gated": "manual" if repo.gated else False,
            "siblings": siblings, "tags": [], "pipeline_tag": None,
        })  # fmt: skip

    def tree(self, body: bytes, name: str, revision: str, path: str = "") -> None:
        commit = self.found(self.readable(name), revision)
        inside = {file: content for file, content in commit.files.items() if file.startswith(f"{path}/" if path else "")}
        if path and not inside:
            raise Refusal(404, f"{path} does not exist on {revision}", "EntryNotFound")
        if self.query.get("recursive", ["false"])[0].lower() != "true":
            inside = {file: content for file, content in inside.items() if "/" not in file.removeprefix(f"{path}/")}
        listed = []
        for file, content in inside.items():
            entry: dict[str, Any] = {"type": "file", "path": file, "size": len(content.content), "oid": content.oid[:40]}
            if content.large:
                entry["lfs"] = {"oid": content.oid, "size": len(content.content), "pointerSize": 134}
            listed.append(entry)
        self.send(200, listed)

    def resolve(self, body: bytes, name: str, revision: str, path: str) -> None:
        """A small file itself; of a large one, where it is, which is another address as on the real Hub."""
        commit = self.found(self.readable(name), revision)
        headers = {"X-Repo-Commit": commit.oid}
        if (file := commit.files.get(path)) is None:
            return self.send(404, b"", {**headers, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        if not file.large:
            return self.send(200, file.content, {**headers, "ETag": f'"{file.oid}"'})
        linked = {"X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": str(len(file.content))}
        place = {"Location": f"{self.hub.storage}/storage/{name}/{file.oid}"}
        self.send(302, b"", {**headers, **linked, **place, "ETag": f'"{file.oid[:40]}"'})

    def fetch(self, body: bytes, name: str, oid: str) -> None:
        self.send(200, self.hub.repos[name].large[oid], {"ETag": f'"{oid}"'})
