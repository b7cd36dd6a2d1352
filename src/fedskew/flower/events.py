"""Events of a node or a server: written as JSON lines, counted for Prometheus, and summarised for health checks."""

import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedskew.core.errors import FedskewError

LOG = logging.getLogger("fedskew.flower")
HOST = "127.0.0.1"
NOTHING: Mapping[str, Any] = {}


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
        return json.dumps({**line, **getattr(record, "words", NOTHING), **getattr(record, "numbers", NOTHING)})


class Counting(logging.Handler):
    """Counts events and stores the last value of each number."""

    def __init__(self) -> None:
        super().__init__()
        self.events: Counter[tuple[tuple[str, str], ...]] = Counter()
        self.last: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        labels = {name: value for name, value in getattr(record, "words", NOTHING).items() if name != "run"}
        self.events[tuple(labels.items())] += 1
        self.last |= {**getattr(record, "numbers", NOTHING), "last_event_timestamp_seconds": record.created}

    def text(self) -> str:
        """Return the numbers in the format of Prometheus."""
        lines = ["# TYPE fedskew_events_total counter"]
        for labels, number in list(self.events.items()):
            lines.append(f"fedskew_events_total{{{','.join(f'{k}={json.dumps(v)}' for k, v in labels)}}} {number}")
        for name, value in list(self.last.items()):
            lines += [f"# TYPE fedskew_{name} gauge", f"fedskew_{name} {value!r}"]
        return "\n".join(lines) + "\n"


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
        server = ThreadingHTTPServer((HOST, port), answering(counting, problem)) if port else None
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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wrong = problem()
            pages = {"/health": (503 if wrong else 200, f"{wrong or 'ok'}\n"), "/metrics": (200, counting.text())}
            status, text = pages.get(self.path, (404, "there are /health and /metrics\n"))
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            pass

    return Handler
