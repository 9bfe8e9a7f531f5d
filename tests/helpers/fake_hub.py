"""A hub on this machine: what huggingface_hub asks for models, answered from memory."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Repositories as {name: {path: content}}; uploads change them."""

    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    claims: ClassVar[dict[str, dict[str, int]]] = {}
    """Sizes that the hub claims of a repository's files, where they are not the true ones."""
    fetched: ClassVar[list[str]] = []
    """Paths of files that were downloaded."""
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, content, status=200, headers=None, *, is_json=True):
        body = json.dumps(content).encode() if is_json else content
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(self.path.partition("?")[0])
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/.*)?", path):
            self.describe(match[1])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.*)", path):
            self.send_file(match[1], match[2])
        else:
            self.answer({"error": "not found"}, 404)

    def describe(self, name):
        if name not in self.repositories:
            error = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            return self.answer({"error": "Repository not found"}, 404, error)
        files = self.repositories[name]
        siblings = [
            {
                "rfilename": path,
                "size": self.claims.get(name, {}).get(path, len(content)),
                "blobId": "0",
            }
            for path, content in files.items()
        ]
        return self.answer({"id": name, "sha": COMMIT, "siblings": siblings})

    def send_file(self, name, path):
        content = self.repositories.get(name, {}).get(path)
        if content is None:
            return self.answer({}, 404, {"X-Error-Code": "EntryNotFound"})
        if self.command == "GET":
            self.fetched.append(path)
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        return self.answer(content, 200, headers, is_json=False)

    def do_POST(self):
        body, path = self.body(), unquote(self.path)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'owner'}/{asked['name']}"
            self.repositories.setdefault(name, {})
            self.answer({"url": f"{self.server_url()}/{name}", "name": name})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            answers = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in files
            ]
            self.answer({"files": answers})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/.*", path):
            self.commit(match[1], body)
        else:
            self.answer({}, 200)

    def commit(self, name, body):
        for line in body.splitlines():
            row = json.loads(line)
            if row["key"] == "file":
                content = base64.b64decode(row["value"]["content"])
                self.repositories[name][row["value"]["path"]] = content
        url = f"{self.server_url()}/{name}/commit/{COMMIT}"
        self.answer({"commitUrl": url, "commitOid": COMMIT, "success": True})

    def server_url(self):
        return f"http://{self.headers['Host']}"


@contextmanager
def fake_hub():
    """Serves a hub without repositories; yields its class, whose `url` is its address."""
    hub = type("OwnHub", (Hub,), {"repositories": {}, "claims": {}, "fetched": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
