"""A server from its start to a signal: uvicorn in the main thread, the models in another."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import uvicorn

from nmt.errors import Interrupted, UserError, warn
from nmt.runtime import make_current
from nmt.serving.app import LOOPBACK, ServedModel, Service, make_app
from nmt.serving.batcher import Batcher, ModelThread
from nmt.serving.configs import ServingConfig
from nmt.serving.counters import Counters
from nmt.serving.task import ServedTask
from nmt.signals import StopRequest

Tasks = Mapping[str, ServedTask[Any]]
"""The models of a server by their names, the default first; all on one device."""

POLL_SECONDS = 0.1
"""Longest delay of the answer to a signal."""


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to `StopRequest`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signal."""
        yield


def serve(tasks: Tasks, cfg: ServingConfig, grace: float) -> None:
    """Serve until a signal; then answer what is being translated and refuse the rest.

    Raises:
        UserError: the address cannot be listened at.
        Interrupted: a signal has arrived.
    """
    with StopRequest(grace) as stop, stop.deferred(), listening(cfg) as listener:
        count = asyncio.run(serve_at(listener, tasks, cfg, stop))
        assert stop.signal is not None
        number = stop.signal
        raise Interrupted(number, f"stopped by {number.name}; requests answered: {count:,}")


async def serve_at(listener: socket.socket, tasks: Tasks, cfg: ServingConfig, stop: StopRequest) -> int:
    """Serve at a bound socket until a signal; return how many requests were answered."""
    device = next(iter(tasks.values())).run.device
    async with contextlib.AsyncExitStack() as stack:
        thread = stack.enter_context(ModelThread(partial(make_current, device)))
        models = list[ServedModel]()
        for name, task in tasks.items():
            counters = Counters(name if len(tasks) > 1 else "")
            batcher = Batcher(task.answers, task.cfg, counters, thread)
            models.append(ServedModel(name, task, await stack.enter_async_context(batcher), counters))
        service = Service(cfg, models, models[0].counters if len(models) == 1 else Counters())
        settings = uvicorn.Config(
            make_app(service), log_config=None, access_log=False, lifespan="off", server_header=False
        )
        server = _Server(settings)
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        print(f"serving     {_served(tasks)} at {_address(listener)} (Ctrl-C stops)", flush=True)
        while not stop.requested and not serving.done():
            await asyncio.sleep(POLL_SECONDS)
        for one in models:
            one.batcher.close()
        server.should_exit = True
        await serving
    return sum(one.counters.requests.get(200, 0) for one in models)


@contextlib.contextmanager
def listening(cfg: ServingConfig) -> Iterator[socket.socket]:
    """Yield a socket that listens at the address of the config."""
    if cfg.host not in LOOPBACK and cfg.token is None:
        warn(
            f"serve.host={cfg.host} can be reached from other machines, and nobody is asked who they are; "
            "set serve.token=..., or keep serve.host=127.0.0.1"
        )
    try:
        family = socket.getaddrinfo(cfg.host, cfg.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((cfg.host, cfg.port), family=family)
    except OSError as error:
        raise UserError(
            f"serve.host={cfg.host} serve.port={cfg.port} cannot be listened at: {error.strerror or error}; "
            "choose another serve.port, or 0 for any that is free"
        ) from error
    with listener:
        yield listener


def _served(tasks: Tasks) -> str:
    """Return what is served: the names of several models, or the directory of one."""
    if len(tasks) > 1:
        return ", ".join(tasks)
    (task,) = tasks.values()
    return str(task.run.directory.path)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
