"""Serves the page of one run, on loopback, read-only.

Formal guarantee: the socket listens on 127.0.0.1 alone. A request is answered only if its Host header names this socket by a loopback
name, so that a web page elsewhere cannot read it by pointing its own name here (DNS rebinding), and only for GET and HEAD of two
addresses: no path of a request reaches the file system. Answers carry a policy that lets the page ask this server and nobody else.
"""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from clipwise.lab.watch import page
from clipwise.types import BadArgument

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
PATIENCE = 10.0  # seconds that a connection may keep silent: it holds a thread
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Watch:
    """The server of one run, in a thread of its own from `with` to the end of the block."""

    def __init__(self, run: str | Path, port: int = 0):
        path = Path(run)
        if not path.is_dir():
            found = "is not a folder" if path.exists() else "does not exist"
            raise BadArgument(f"run={str(run)!r} {found}; give the folder of a run (see `clipwise train --out`)")
        if not 0 <= port < 1 << 16:
            raise BadArgument(f"port={port} is not a port; give one from 1 to 65535, or 0 for any that is free")
        try:
            self._server = _Server((ADDRESS, port), _Handler)
        except OSError as error:
            raise BadArgument(
                f"port={port} cannot be had ({error}); give another one, or 0 for any that is free"
            ) from error
        self._server.run = path.absolute()
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="clipwise watch", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    run: Path


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    server_version, sys_version = "clipwise", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        hosts = self.headers.get_all("Host") or []
        port = self.server.server_address[1]
        if len(hosts) != 1 or hosts[0].lower() not in {f"{name}:{port}" for name in NAMES}:
            self._send(
                HTTPStatus.MISDIRECTED_REQUEST,
                "text/plain",
                f"ask for http://{ADDRESS}:{port}/ by that name\n",
                with_body,
            )
        elif self.path == "/":
            self._send(HTTPStatus.OK, "text/html", page.whole(self.server.run), with_body)
        elif self.path == "/live":
            now = page.part(self.server.run)
            mark = {"ETag": f'"{now.version}"'}
            if self.headers.get("If-None-Match") == mark["ETag"]:
                self._send(HTTPStatus.NOT_MODIFIED, "text/html", "", with_body, mark)
            else:
                self._send(HTTPStatus.OK, "text/html", now.content, with_body, mark)
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is / and nothing else\n", with_body)

    def _send(
        self, status: HTTPStatus, kind: str, text: str, with_body: bool, more: dict[str, str] | None = None
    ) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *words: Any) -> None:
        """Silent: the terminal belongs to the training."""
