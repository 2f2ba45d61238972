"""A server with the part of the Hugging Face Hub's HTTP contract that fetching a snapshot uses, over folders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tests.support.listening import listen

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class SmallHub:
    """Repositories (`org/name` → folder), each at one commit; `served` lists what was sent, `tokens` the senders'.

    Answers with a file in `cut` break off, the first after so many bytes as its list begins with; `ranges` has the
    ranges that were asked for.
    """

    def __init__(self, repositories: Mapping[str, Path], gated: frozenset[str] = frozenset()) -> None:
        self._repositories = repositories
        self._gated = gated
        self.served: list[str] = []
        self.tokens: set[str] = set()
        self.cut: dict[str, list[int]] = {}
        self.ranges: list[str] = []
        self.app = FastAPI(title="small hub")
        self.app.add_api_route("/api/models/{org}/{name}/revision/{revision}", self._describe)
        self.app.add_api_route("/api/models/{org}/{name}/tree/{revision}", self._tree)
        self.app.add_api_route("/{org}/{name}/resolve/{revision}/{file:path}", self._resolve, methods=["GET", "HEAD"])

    def _describe(self, request: Request, org: str, name: str, revision: str) -> Response:
        if refusal := self._refusal(request, f"{org}/{name}", revision):
            return refusal
        files = [{"rfilename": file} for file in self._files(f"{org}/{name}")]
        return JSONResponse({"id": f"{org}/{name}", "sha": COMMIT, "siblings": files, "tags": [], "private": False})

    def _tree(self, request: Request, org: str, name: str, revision: str) -> Response:
        if refusal := self._refusal(request, f"{org}/{name}", revision):
            return refusal
        entries: list[dict[str, Any]] = [
            {"type": "file", "path": file, "oid": _digest(path), "size": path.stat().st_size}
            for file, path in self._files(f"{org}/{name}").items()
        ]
        return JSONResponse(entries)

    def _resolve(self, request: Request, org: str, name: str, revision: str, file: str) -> Response:
        if refusal := self._refusal(request, f"{org}/{name}", revision):
            return refusal
        path = self._files(f"{org}/{name}")[file]
        headers = {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": COMMIT}
        if request.method == "GET":
            self.served.append(f"{org}/{name}/{file}")
            if "range" in request.headers:
                self.ranges.append(request.headers["range"])
            if sizes := self.cut.get(f"{org}/{name}/{file}"):
                return _CutResponse(path.read_bytes(), sizes.pop(0), headers)
        return FileResponse(path, headers=headers)

    def _refusal(self, request: Request, repository: str, revision: str) -> Response | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.tokens.add(token)
        if repository not in self._repositories:
            return JSONResponse({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        if revision != COMMIT:
            return JSONResponse({"error": "no such revision"}, 404, {"X-Error-Code": "RevisionNotFound"})
        if repository in self._gated and not token:
            return JSONResponse({"error": "gated"}, 401, {"X-Error-Code": "GatedRepo"})
        return None

    def _files(self, repository: str) -> dict[str, Path]:
        folder = self._repositories[repository]
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


class _CutResponse(Response):
    """Announces a whole body, sends its beginning and closes the connection."""

    def __init__(self, body: bytes, size: int, headers: dict[str, str]) -> None:
        super().__init__(body, headers=headers)
        self._size = size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body)[: self._size], "more_body": True})
        raise ConnectionResetError


@contextmanager
def served(hub: SmallHub) -> Iterator[str]:
    """The hub's address while the block runs."""
    with listen(hub.app) as url:
        yield url


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
