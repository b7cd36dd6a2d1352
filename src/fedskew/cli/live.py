"""``report --live``: a local web page of the report that is updated while its runs continue."""

import hashlib
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Lock, Timer

from fedskew.cli.terminal import Console
from fedskew.core.errors import FedskewError, require
from fedskew.report.budget import Budget
from fedskew.report.html import page
from fedskew.store.runs import RunRecord, RunStore

HOST = "127.0.0.1"
TRIED = 20
"""How many ports to try, one after the other."""

LAST = 65535
"""The highest port number."""

PATIENCE = 10.0
"""Time limit for a request to arrive, in seconds."""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Live(ThreadingHTTPServer):
    """Serves the report on some runs. If the store has changed, the page is made again.

    Each connection has its own thread, so a slow one does not block the others. One thread at a time reads the store.
    """

    daemon_threads = True

    def __init__(self, store: RunStore, ids: Sequence[int], port: int, budget: Budget | None = None) -> None:
        super().__init__((HOST, port), Answer)
        self.folder, self.ids, self.budget = store.folder, ids, budget
        self.turn = Lock()
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        self.drawn = ("", "")

    def version(self) -> str:
        """Return a text that changes if the runs in the store change."""
        with self.turn, closing(RunStore(self.folder)) as store:
            return version([store.run(i) for i in self.ids])

    def page(self) -> str:
        """Return the HTML of the report for the present state of the store."""
        with self.turn, closing(RunStore(self.folder)) as store:
            records = [store.run(i) for i in self.ids]
            now = version(records)
            if self.drawn[0] != now:
                self.drawn = (now, page(store, records, self.budget, live=now))
            return self.drawn[1]


class Answer(BaseHTTPRequestHandler):
    """Answers requests for the page, for its version, and for the script that asks for both."""

    timeout = 5
    server: Live

    def setup(self) -> None:
        super().setup()
        # a timeout for each read would not stop a client that sends single bytes with pauses
        self.end = Timer(PATIENCE, self.connection.shutdown, (socket.SHUT_RD,))
        self.end.daemon = True
        self.end.start()

    def finish(self) -> None:
        self.end.cancel()
        super().finish()

    def do_GET(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # the browser has closed the connection
            try:
                self.say(*self.found())
            except FedskewError as error:
                self.say(500, "text/plain", str(error))

    def found(self) -> tuple[int, str, str]:
        """Return status, content type and text of the answer. Raises `FedskewError` if the store cannot be read."""
        # without this check, another site's page could read the report (DNS rebinding)
        if self.headers.get("Host") not in self.server.hosts:
            return 403, "text/plain", "this page is only at http://127.0.0.1"
        match self.path:
            case "/":
                return 200, "text/html", self.server.page()
            case "/version":
                return 200, "text/plain", self.server.version()
            case "/live.js":
                return 200, "text/javascript", (files("fedskew.report") / "live.js").read_text(encoding="utf-8")
        return 404, "text/plain", "no such page"

    def say(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            **HEADERS,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing on the terminal."""


def version(records: Sequence[RunRecord]) -> str:
    """Return a hash that changes if a run progresses or a fact about it is stored."""
    state = [(r.id, r.status, r.message, r.rounds_done, r.updated, str(r.facts)) for r in records]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def opened(store: RunStore, ids: Sequence[int], port: int, budget: Budget | None = None) -> Live:
    """Return a server at ``port`` or at the next free port.

    Raises `BadInput` for an invalid port, and `FedskewError` if no tried port is free.
    """
    require(1 <= port <= LAST, f"report: --port must be at least 1 and at most {LAST}, got {port}")
    last = min(port + TRIED - 1, LAST)
    for number in range(port, last + 1):
        try:
            return Live(store, ids, number, budget)
        except OSError as error:
            reason = error.strerror
    raise FedskewError(f"report: none of the ports {port} to {last} can be used ({reason}); choose another with --port")


def serve(store: RunStore, records: Sequence[RunRecord], port: int, budget: Budget | None = None) -> int:
    """Serve the report on the runs until Ctrl-C."""
    with opened(store, [r.id for r in records], port, budget) as server:
        address = f"http://{HOST}:{server.server_port}"
        Console().print(f"report: {address} (this machine only); Ctrl-C stops it", soft_wrap=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
