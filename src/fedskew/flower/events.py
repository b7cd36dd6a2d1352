"""Events of a node or a server: written as JSON lines, counted for Prometheus, and summarised for health checks."""

import json
import logging
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedskew.core.errors import FedskewError

LOG = logging.getLogger("fedskew.flower")
HOST = "127.0.0.1"
NOTHING: Mapping[str, Any] = {}
MOST_CONNECTIONS, PATIENCE = 32, 5
"""Maximum number of connections at a time, and the seconds after which a silent one is closed."""


def event(
    message: str, words: Mapping[str, str] = NOTHING, numbers: Mapping[str, float] = NOTHING, level: int = logging.INFO
) -> None:
    """Log one line. Texts become labels of a counter, except the run's name. Numbers become gauges."""
    LOG.log(level, "%s", message, extra={"words": words, "numbers": numbers})


class JsonLines(logging.Formatter):
    """Formats each event as a line of JSON: time, level, message and facts."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        numbers = {k: v if math.isfinite(v) else None for k, v in getattr(record, "numbers", NOTHING).items()}
        return json.dumps({**line, **getattr(record, "words", NOTHING), **numbers})


class Counting(logging.Handler, Collector):
    """Counts events and stores the last value of each number."""

    def __init__(self) -> None:
        super().__init__()
        self.events: Counter[tuple[tuple[str, str], ...]] = Counter()
        self.last: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        labels = {name: value for name, value in getattr(record, "words", NOTHING).items() if name != "run"}
        self.events[tuple(labels.items())] += 1
        self.last |= {**getattr(record, "numbers", NOTHING), "last_event_timestamp_seconds": record.created}

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers for `prometheus_client`. Events differ in their labels."""
        events = Metric("fedskew_events", "events by their labels", "counter")
        for labels, number in list(self.events.items()):
            events.add_sample("fedskew_events_total", dict(labels), number)
        yield events
        for name, value in list(self.last.items()):
            yield GaugeMetricFamily(f"fedskew_{name}", f"last value of {name}", value)


class StatusServer(ThreadingHTTPServer):
    """A server with at most `MOST_CONNECTIONS` connections at a time; it closes further ones."""

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__((HOST, port), handler)
        self.free = threading.Semaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()


@contextmanager
def observed(port: int, json_log: bool, problem: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Serve /health and /metrics on a port of this machine (0: do not). On request, write events as JSON to standard error.

    ``problem()`` returns the present problem, or "" if there is none. Raises `FedskewError` if the port is in use.
    """
    counting, lines = Counting(), logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonLines())
    handlers: list[logging.Handler] = [*([counting] if port else []), *([lines] if json_log else [])]
    before, propagate = LOG.level, LOG.propagate
    try:
        server = StatusServer(port, answering(counting, problem)) if port else None
    except OSError as error:
        raise FedskewError(
            f"status: port {port} of {HOST} cannot be used: {error.strerror}; choose another one"
        ) from None
    try:
        for handler in handlers:
            LOG.addHandler(handler)
            LOG.setLevel(logging.INFO)
        LOG.propagate = propagate and not json_log
        if server:
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield
    finally:
        if server:
            server.shutdown()
            server.server_close()
        for handler in handlers:
            LOG.removeHandler(handler)
        LOG.setLevel(before)
        LOG.propagate = propagate


def answering(counting: Counting, problem: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    """Return the class that handles requests for /health and /metrics."""
    registry = CollectorRegistry()
    registry.register(counting)

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            wrong = problem()
            pages = {
                "/health": (503 if wrong else 200, f"{wrong or 'ok'}\n"),
                "/metrics": (200, generate_latest(registry).decode()),
            }
            status, text = pages.get(self.path, (404, "there are /health and /metrics\n"))
            # a page of another site could reach this port under a name of its own
            if self.headers.get("Host", HOST).partition(":")[0] not in (HOST, "localhost"):
                status, text = 403, f"ask for {HOST} or localhost\n"
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            """Write nothing."""

    return Handler
