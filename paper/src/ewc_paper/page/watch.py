"""`ewc watch`: the page of a run on this machine alone, built anew whenever the run has written.

The server has one page and no files: no path is ever opened because a request names it. What comes
in is limited in size and time, and refused unless a browser on this machine asked for this address
itself, so that no other website can read the page (DNS rebinding).
"""

import contextlib
import hashlib
import io
import os
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from ewc_paper.errors import RunError
from ewc_paper.page.markup import document, join, tag
from ewc_paper.page.report import build_page
from ewc_paper.runs.checksums import SUMS
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.terminal import printable

ADDRESS = "127.0.0.1"
REQUEST_BYTES = 16_384
REQUEST_SECONDS = 5.0  # for a whole request to arrive
ANSWER_SECONDS = 20.0  # for a whole answer to be taken
CONNECTIONS = 16  # served at the same time; others are told to come again
REFUSALS = 16  # told so at the same time; others are closed at once
REFUSAL_SECONDS = 2.0  # for a client to take its refusal
# Files that the page is made of, or checked against.
WATCHED = ("config.json", "sweep.json", "metrics.jsonl", "*.npz", SUMS)
FULL = b"503 As many browsers as can be served look at this page already: try again in a moment.\n"
FULL_ANSWER = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Retry-After: 2\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(FULL), FULL)
)
OTHER_ADDRESS = (
    "This page is shown to a browser that asks for http://127.0.0.1:{port}/ or "
    "http://localhost:{port}/ and for no other address. Over a forwarded port, use the same port "
    "at both ends: ssh -L {port}:127.0.0.1:{port} MACHINE"
)

HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class LivePage:
    """The page of a directory, built again when a file of it has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._version, self._content = "", b""

    def latest(self) -> tuple[str, bytes]:
        """Return the version and the page; what is wrong with a run is said on the page."""
        with self._lock:  # built once, also for several readers
            version = self._state()
            if version != self._version:
                self._version, self._content = version, self._build()
            return self._version, self._content

    def _state(self) -> str:
        """Return a string that differs when a file has changed."""
        digest = hashlib.sha256()
        for pattern in WATCHED:
            for file in sorted(self._directory.rglob(pattern)):
                try:
                    status = file.stat(follow_symlinks=False)
                except OSError:
                    continue  # just removed
                digest.update(os.fsencode(file))
                digest.update(f" {status.st_size} {status.st_mtime_ns}\n".encode())
        for lock in sorted(self._directory.rglob("lock")):
            digest.update(os.fsencode(lock))
            digest.update(f" {RunDirectory(lock.parent).is_being_written()}\n".encode())
        return digest.hexdigest()

    def _build(self) -> bytes:
        try:
            return build_page([self._directory], live=True)
        except (RunError, OSError) as error:
            said = str(error)
        except Exception as error:  # whatever is in the files, a browser gets an answer
            said = f"the files do not fit together ({type(error).__name__}: {error})"
        title = self._directory.resolve().name
        wrong = join(tag("h1", title), tag("p", f"Nothing to show: {said}", class_="error"))
        return document(title, wrong, live=True)


class LimitedInput(io.RawIOBase):
    """What a client sends, as long as it is not too much and does not take too long."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = REQUEST_BYTES
        self._deadline = time.monotonic() + REQUEST_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; raise an OSError at a limit, which ends the connection."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request takes too long")
        if self._left <= 0:
            raise ConnectionAbortedError("the request is too long")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= count
        return count


class Handler(BaseHTTPRequestHandler):
    """Answers one request with the page, or refuses it."""

    server: "Server"
    server_version, sys_version = "ewc", ""
    error_message_format = "%(code)d %(message)s\n%(explain)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def setup(self) -> None:
        """Read through the limits, and take as long to answer as is fair."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(LimitedInput(self.connection))

    def parse_request(self) -> bool:
        """Refuse what is not a plain question for the page from this machine."""
        self.close_connection = True
        if not super().parse_request():
            return False
        self.close_connection = True  # one request per connection, whatever the client asks for
        refused = self._refusal()
        if refused:
            other = refused == HTTPStatus.MISDIRECTED_REQUEST
            port = self.server.server_address[1]
            self.send_error(refused, explain=OTHER_ADDRESS.format(port=port) if other else None)
        return refused is None

    def _refusal(self) -> HTTPStatus | None:
        """Return why the request is refused, or None."""
        if self.command not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED
        own = {f"{name}:{self.server.server_address[1]}" for name in (ADDRESS, "localhost")}
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in own:
            return HTTPStatus.MISDIRECTED_REQUEST
        origins = self.headers.get_all("Origin", [])
        if any(origin.lower() not in {f"http://{host}" for host in own} for origin in origins):
            return HTTPStatus.FORBIDDEN
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return HTTPStatus.FORBIDDEN
        return None if self.path == "/" else HTTPStatus.NOT_FOUND

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def _answer(self, *, with_content: bool) -> None:
        version, content = self.server.page.latest()
        tagged = f'"{version}"'
        fresh = self.headers.get("If-None-Match") == tagged
        self.send_response(HTTPStatus.NOT_MODIFIED if fresh else HTTPStatus.OK)
        for name, value in {**HEADERS, "ETag": tagged}.items():
            self.send_header(name, value)
        if not fresh:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_content and not fresh:
            self.connection.settimeout(ANSWER_SECONDS)
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: what clients send is no text for a terminal."""


class Server(ThreadingMixIn, TCPServer):
    """Serves one page on the loopback address, to a limited number of clients at a time."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # Ctrl-C does not wait for slow clients
    request_queue_size = 64

    def __init__(self, directory: Path, port: int) -> None:
        self.page = LivePage(directory)
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._refusing = threading.BoundedSemaphore(REFUSALS)
        super().__init__((ADDRESS, port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in a thread of its own, if there is a free one."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        elif self._refusing.acquire(blocking=False):
            threading.Thread(target=self._refuse, args=(request,), daemon=True).start()
        else:
            self.shutdown_request(request)

    def _refuse(self, request: socket.socket) -> None:
        """Tell a client to come again, and wait until it has taken that."""
        deadline = time.monotonic() + REFUSAL_SECONDS
        try:
            request.settimeout(REFUSAL_SECONDS)
            request.sendall(FULL_ANSWER)
            request.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline and request.recv(REQUEST_BYTES):
                pass  # closed with bytes that are not read, it would be reset before it has read
        except OSError:
            pass
        finally:
            self.shutdown_request(request)
            self._refusing.release()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Go on: a client that breaks off is no error of ours."""


def serve(directory: Path, port: int) -> None:
    """Serve the page of a directory until Ctrl-C; say at which address."""
    if not directory.is_dir():
        raise RunError(f"{directory} is not a directory: expected a run, or a directory of runs")
    with Server(directory, port) as server, contextlib.suppress(KeyboardInterrupt):
        address = f"http://{ADDRESS}:{server.server_address[1]}/"
        print(f"watching {printable(str(directory))} at {address} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
    print("ended")
