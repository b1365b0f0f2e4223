"""``legroom run --metrics``: a run's figures for Prometheus, over HTTP."""

from __future__ import annotations

import contextlib
import http.server
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from legroom.core.errors import LegroomError
from legroom.report.exports.prometheus import RunMetrics
from legroom.report.journal import JournalTail
from legroom.report.screen.lines import say

__all__ = ["Metrics", "serving"]

_LOOPBACK = "127.0.0.1"


class Metrics:
    """The figures of a run, read from its journal when they are asked for."""

    def __init__(self) -> None:
        self._run = RunMetrics()
        self._tail: JournalTail | None = None
        self._lock = threading.Lock()

    def follow(self, journal: Path) -> None:
        """Read from this journal."""
        self._tail = JournalTail(journal)

    def text(self) -> str:
        """The figures now."""
        with self._lock:
            for event in self._tail.new_events() if self._tail is not None else ():
                self._run(event)
            return self._run.text()


@contextlib.contextmanager
def serving(address: str) -> Iterator[Metrics]:
    """Answer Prometheus as long as the context lasts.

    Args:
        address: A port, which is open to this machine only, or an address and a port.

    Raises:
        LegroomError: If the address can't be used.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or _LOOPBACK
    metrics = Metrics()
    try:
        server = _server(host, int(port), metrics)
    except (OSError, ValueError, OverflowError) as error:
        raise LegroomError(
            f"--metrics can't listen on {address!r}: {error}. Expected a port that is free, as in "
            "--metrics 9464, or an address and a port, as in --metrics 0.0.0.0:9464."
        ) from error
    say(f"metrics are on http://{host}:{server.server_address[1]}/metrics")
    # Signals are the main thread's to wait for.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()


def _server(host: str, port: int, metrics: Metrics) -> http.server.HTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/metrics":
                self.send_error(404, "Only /metrics is here")
                return
            body = metrics.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the terminal is the script's."""

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    return Server((host, port), Handler)
