"""A small model hub on loopback that speaks the hub's protocol as huggingface_hub 1.33 uses it, over a folder of real
models.

`python tests/fakes/hub.py --root FOLDER` prints its port. FOLDER/org/name holds a model's files, and
FOLDER/datasets/org/name a data set's; either may hold `.repo.json`: {"sha", "gated", "private", "licence", "tags"}.
Served: /api/models/ID/revision/REV with blobs, its tree, /ID/resolve/REV/FILE by HEAD and (ranged) GET, and for data
sets /api/datasets/ID/... and /datasets/ID/resolve/...; large files redirect to another host name with a signature in
the address, where a token must not follow.
The token hf_good may read everything, hf_poor is valid and may read nothing gated or private, any other is refused.

For tests only: GET /-/log is what was asked and sent since the last GET /-/forget; GET /-/fault?... sets the fault to
come, alone it ends them. drop_after=BYTES once a request, drops=N such requests; slow_ms between two pieces of 64 kB;
stand_after=BYTES sends no more of a request for good, and the connection stays open; cut=FILE served one byte short;
status=N for the next `times` requests; no_ranges=1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import select
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LFS = (".safetensors", ".bin", ".model", ".parquet")
PIECE = 64 * 1024
API = re.compile(r"/api/(models|(?P<kind>datasets))/(?P<id>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?")
TREE = re.compile(r"/api/models/(?P<id>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)")
RESOLVE = re.compile(r"/(?P<id>(datasets/)?[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


class Hub:
    """What all requests share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = threading.Lock()
        self.log: list[dict[str, Any]] = []
        self.fault: dict[str, str] = {}
        self.blobs: dict[str, Path] = {}

    def take(self, name: str) -> bool:
        """Whether a fault that happens a number of times happens now."""
        with self.lock:
            left = int(self.fault.get(name, "0"))
            self.fault[name] = str(max(0, left - 1))
            return left > 0


class Repo:
    def __init__(self, hub: Hub, id: str) -> None:
        self.id, self.folder = id, hub.root / id
        settings = self.folder / ".repo.json"
        self.settings: dict[str, Any] = json.loads(settings.read_text()) if settings.is_file() else {}
        self.sha = self.settings.get("sha") or hashlib.sha1(id.encode()).hexdigest()

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and path.name != ".repo.json")

    def document(self, blobs: bool) -> dict[str, Any]:
        licence = self.settings.get("licence")
        return {
            "_id": "0",
            "id": self.id,
            "modelId": self.id,
            "sha": self.sha,
            "private": self.settings.get("private", False),
            "gated": self.settings.get("gated", False),
            "disabled": False,
            "tags": self.settings.get("tags", []),
            "downloads": 0,
            "cardData": {"license": licence} if licence else {},
            "siblings": [self.sibling(path, blobs) for path in self.files()],
        }

    def sibling(self, path: Path, blobs: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": path.relative_to(self.folder).as_posix()}
        if blobs:
            size = path.stat().st_size
            entry |= {"size": size, "blobId": git_id(path)}
            if path.name.endswith(LFS):
                entry["lfs"] = {"sha256": sha256(path), "size": size, "pointerSize": 134}
        return entry


def git_id(path: Path) -> str:
    content = content_of(path)
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sha256(path: Path) -> str:
    return hashlib.sha256(content_of(path)).hexdigest()


def content_of(path: Path) -> bytes:
    """A sparse file, whose weights are holes, has a checksum made up from its name: nobody would download it."""
    status = path.stat()
    sparse = status.st_size > 1 << 26 and status.st_blocks * 512 < status.st_size // 2
    return path.name.encode() if sparse else path.read_bytes()


def tree_entry(path: Path, sibling: dict[str, Any]) -> dict[str, Any]:
    entry = {"type": "file", "path": sibling["rfilename"], "size": sibling["size"], "oid": sibling["blobId"]}
    if "lfs" in sibling:
        entry["lfs"] = {"oid": sibling["lfs"]["sha256"], "size": sibling["size"], "pointerSize": 134}
    return entry


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """Nothing: the first line of the output is the port."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), {key: values[0] for key, values in parse_qs(parts.query).items()}
        # It is in the log before its answer, and its bytes are counted before they go: who has the answer finds both.
        self.entry = {
            "method": self.command,
            "path": path,
            "host": self.headers["Host"].split(":")[0],
            "sent": 0,
            "range": self.headers.get("Range"),
            "token": self.headers.get("Authorization"),
            "ended": False,
        }
        if path.startswith("/-/"):
            return self.control(path, query)
        with self.hub.lock:
            self.hub.log.append(self.entry)
        try:
            self.route(path, query)
        finally:
            self.entry["ended"] = True

    def control(self, path: str, query: dict[str, str]) -> None:
        with self.hub.lock:
            if path == "/-/fault":
                self.hub.fault = query
            if path == "/-/forget":
                self.hub.log = []
            document = list(self.hub.log)
        self.json(200, document)

    def route(self, path: str, query: dict[str, str]) -> None:
        if "status" in self.hub.fault and self.hub.take("times"):
            return self.refuse(int(self.hub.fault["status"]), None, "Try later")
        if path.startswith("/cdn/"):
            return self.blob(path, query)
        if match := API.fullmatch(path):
            id = f"{match['kind']}/{match['id']}" if match["kind"] else match["id"]
            return self.api(id, match["revision"], query)
        if match := TREE.fullmatch(path):
            return self.tree(match["id"], match["revision"])
        if match := RESOLVE.fullmatch(path):
            return self.resolve(match["id"], match["revision"], match["file"])
        return self.refuse(404, None, "Sorry, we can't find the page you are looking for.")

    def api(self, id: str, revision: str | None, query: dict[str, str]) -> None:
        repo = self.allowed(id, revision, reading=False)
        if repo is not None:
            self.json(200, repo.document(query.get("blobs", "").lower() == "true"))

    def tree(self, id: str, revision: str) -> None:
        """Every file, as the library's snapshots list them; our own code never asks for this."""
        repo = self.allowed(id, revision, reading=False)
        if repo is not None:
            listed = [(path, repo.sibling(path, blobs=True)) for path in repo.files()]
            self.json(200, [tree_entry(path, entry) for path, entry in listed])

    def resolve(self, id: str, revision: str, file: str) -> None:
        repo = self.allowed(id, revision, reading=True)
        if repo is None:
            return
        path = repo.folder / file
        if path not in repo.files():
            self.refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": repo.sha})
        elif path.name.endswith(LFS):
            self.redirect(repo, path)
        else:
            self.content(path, {"X-Repo-Commit": repo.sha, "ETag": f'"{git_id(path)}"'})

    def allowed(self, id: str, revision: str | None, *, reading: bool) -> Repo | None:
        """The repository, or None after the refusal that the hub gives."""
        suffix = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if suffix not in {"", "hf_good", "hf_poor"}:
            self.refuse(401, None, "Invalid credentials in Authorization header")
            return None
        repo = Repo(self.hub, id)
        if not repo.folder.is_dir() or (repo.settings.get("private") and suffix != "hf_good"):
            self.refuse(404 if suffix else 401, "RepoNotFound", "Repository not found")
            return None
        if revision not in {None, "main", "v1.0", repo.sha}:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        if reading and repo.settings.get("gated") and suffix != "hf_good":
            self.refuse(403 if suffix else 401, "GatedRepo", f"Access to model {id} is restricted.")
            return None
        return repo

    def redirect(self, repo: Repo, path: Path) -> None:
        digest = sha256(path)
        self.hub.blobs[digest] = path
        self.send_response(302)
        port = self.server.server_address[1]
        self.send_header("Location", f"http://localhost:{port}/cdn/{digest}?signature=s")
        self.send_header("X-Repo-Commit", repo.sha)
        self.send_header("X-Linked-Size", str(path.stat().st_size))
        self.send_header("X-Linked-Etag", f'"{digest}"')
        self.send_header("ETag", f'"{digest}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def blob(self, path: str, query: dict[str, str]) -> None:
        digest = path.removeprefix("/cdn/")
        if query.get("signature") != "s" or digest not in self.hub.blobs:
            self.refuse(403, None, "Access denied")
        else:
            self.content(self.hub.blobs[digest], {"ETag": f'"{digest}"'})

    def content(self, path: Path, headers: dict[str, str]) -> None:
        """The file, or the range of it that was asked for."""
        size = path.stat().st_size - (1 if self.hub.fault.get("cut") == path.name else 0)
        start, end, status = 0, size, 200
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if match and not self.hub.fault.get("no_ranges"):
            start, end, status = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size, 206
            if start >= size:
                self.refuse(416, None, "Range Not Satisfiable", {"Content-Range": f"bytes */{size}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}
        self.send_response(status)
        for name, value in {**headers, "Accept-Ranges": "bytes", "Content-Length": str(end - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.body(path, start, end)

    def body(self, path: Path, start: int, end: int) -> None:
        limit = end
        if "drop_after" in self.hub.fault and path.name.endswith(LFS) and self.hub.take("drops"):
            limit = min(end, start + int(self.hub.fault["drop_after"]))
        stands_at = end + 1
        if "stand_after" in self.hub.fault and path.name.endswith(LFS):
            stands_at = start + int(self.hub.fault["stand_after"])
        with path.open("rb") as source:
            source.seek(start)
            while start < limit:
                piece = source.read(min(PIECE, limit - start))
                self.entry["sent"] += len(piece)
                try:
                    self.wfile.write(piece)
                except OSError:
                    self.entry["sent"] -= len(piece)
                    break
                start += len(piece)
                if start < limit and self.pause(float(self.hub.fault.get("slow_ms", "0")) / 1000):
                    break
                if start >= stands_at:
                    self.pause(None)
                    break
        if start < end:
            self.close_connection = True

    def pause(self, seconds: float | None) -> bool:
        """Send nothing for so long, None for ever; end early, with True, once the client has left."""
        return bool(select.select([self.connection], [], [], seconds)[0])

    def json(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.entry["sent"] = len(body)
        self.wfile.write(body)

    def refuse(self, status: int, code: str | None, message: str, headers: dict[str, str] | None = None) -> None:
        body = json.dumps({"error": message}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    Handler.hub = Hub(parser.parse_args().root.resolve())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
