"""A server that speaks the hub's protocol, as far as it is used to fetch models; it also fails in the hub's ways.

Source: https://huggingface.co/docs/hub/api, and what huggingface_hub reads of the answers.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

LARGE = 4096
"""Files from so many bytes on are in Git LFS: they have a SHA-256, and come from another address."""
TOKEN = "hf_good"


@dataclass
class StandInHub:
    """Its repositories, its faults, and what it was asked.

    Attributes:
        repos: the files of each repository.
        revisions: the files of a repository at a revision, by both.
        gated: repositories that only `TOKEN` opens.
        breaks: by path, after how many bytes the connection ends; each once for each number.
        content: by path, what is sent instead of the file.
        ranges: whether it sends parts of files.
        status: by repository, a status to answer all with.
        held: by path, what must be set before more than the first half of its content is sent.
        asked: method, path and Range of each request.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    breaks: dict[str, list[int]] = field(default_factory=dict)
    content: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    status: dict[str, int] = field(default_factory=dict)
    held: dict[str, Event] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    address: str = ""

    def fetched(self) -> list[str]:
        """The names of the files whose content was asked for, with the range if there was one."""
        return [
            path.rpartition("/")[2] + (f" {part}" if part else "")
            for method, path, part in self.asked
            if method == "GET" and "/api/" not in path and "/resolve/" in path
        ]

    def commits(self, repo: str) -> dict[str, dict[str, bytes]]:
        """The files of each commit, the newest one first; a commit's name changes with the files."""
        trees = [self.repos[repo], *(tree for (other, _), tree in self.revisions.items() if other == repo)]
        return {_commit(tree): tree for tree in trees}


@contextmanager
def serving(hub: StandInHub) -> Iterator[None]:
    """Runs the server on a port of this machine."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def the_hub(hub: StandInHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """Runs the server, and has huggingface_hub and MLXR use it, with registry and caches in a folder."""
    constants: Any = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("MLXR_DATA_DIR", str(folder / "data"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("mlxr.loading.add_model.prepare", lambda host, artifact: None)  # it takes seconds
    with serving(hub):
        # Read from the environment when huggingface_hub is imported.
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 14)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
        yield hub


class _Handler(BaseHTTPRequestHandler):
    hub: StandInHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Range")))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._describe(match[1], match[2])
        elif match := re.fullmatch(r"/(?:large/)?([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)", path):
            self._resolve(match[1], match[2], match[3], moved=path.startswith("/large/"))
        else:
            self._send(404, b"", {})

    def _refused(self, repo: str, *, content: bool) -> bool:
        if repo in self.hub.status:
            self._send(self.hub.status[repo], b"{}", {})
        elif repo not in self.hub.repos:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif content and repo in self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            code = 403 if self.headers.get("Authorization") else 401
            self._send(code, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        else:
            return False
        return True

    def _describe(self, repo: str, revision: str | None) -> None:
        if self._refused(repo, content=False):
            return
        commits = self.hub.commits(repo)
        tree = self.hub.repos[repo] if revision is None else self.hub.revisions.get((repo, revision))
        tree = commits.get(revision or "") if tree is None else tree
        if tree is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
            return
        sha = next(commit for commit, files in commits.items() if files == tree)
        siblings = []
        for path, content in tree.items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": _git_hash(content)}
            if len(content) >= LARGE:
                entry["lfs"] = {"sha256": _sha256(content), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        body = {"id": repo, "sha": sha, "siblings": siblings, "private": False, "tags": []}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo: str, commit: str, path: str, *, moved: bool) -> None:
        if self._refused(repo, content=True):
            return
        content = self.hub.commits(repo).get(commit, {}).get(path)
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        digest = _sha256(content) if len(content) >= LARGE else _git_hash(content)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        if len(content) >= LARGE and not moved:
            headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            self._send(302, b"", headers | {"Location": f"{self.hub.address}/large{self.path}"})
            return
        content, status = self.hub.content.get(path, content), 200
        if self.hub.ranges and (part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")):
            start, end = int(part[1]), int(part[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{min(end, len(content) - 1)}/{len(content)}"
            content, status = content[start : end + 1], 206
        stops = self.hub.breaks.get(path) if self.command == "GET" else None
        held = self.hub.held.get(path)
        self._send(status, content, headers, stops.pop(0) if stops else None, held)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], stop: int | None = None, held: Event | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            half = len(body) // 2 if held is not None else 0
            with suppress(ConnectionError):  # the client may leave
                self.wfile.write(body[:half])
                if held is not None:
                    held.wait(30)
                self.wfile.write(body[half:stop])
        if stop is not None:
            self.close_connection = True


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _commit(tree: dict[str, bytes]) -> str:
    """A name that depends on all names and contents."""
    files = sorted((name, _git_hash(content)) for name, content in tree.items())
    return hashlib.sha1(repr(files).encode()).hexdigest()
