"""A server of untrained runs in a thread of the test, and requests to it."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from nmt.runs.opened import Run
from nmt.serving.configs import ServingConfig
from nmt.serving.server import listening, serve_at
from nmt.serving.tasks import served_task
from nmt.signals import StopRequest


class Client:
    """What sends requests to the server."""

    def __init__(self, port: int):
        self.port = port

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body of a page."""
        return self._send("GET", path, None, headers)

    def head(self, path: str) -> tuple[int, dict[str, str], str]:
        """Return status and headers of a page, and no body."""
        return self._send("HEAD", path, None, {})

    def post(self, content: Any, path: str = "/translate", **headers: str) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and what is in the JSON of an answer; `content` is JSON unless bytes."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        status, found, text = self._send("POST", path, body, {"Content-Type": "application/json"} | headers)
        return status, found, json.loads(text)

    def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()


@contextmanager
def served(run: Run | Mapping[str, Run], tgt: str | None = None, **limits: Any) -> Iterator[Client]:
    """Serve `run`, or several by names, at a free port while the block lasts."""
    cfg, stop = ServingConfig(port=0, **limits), StopRequest()
    runs = {run.path.name: run} if isinstance(run, Run) else run
    tasks = {name: served_task(one, one.cfg.decoding, tgt, cfg) for name, one in runs.items()}
    with listening(cfg) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(serve_at(listener, tasks, cfg, stop)))
        thread.start()
        try:
            yield Client(listener.getsockname()[1])
        finally:
            stop.signal = signal.SIGTERM
            thread.join()
