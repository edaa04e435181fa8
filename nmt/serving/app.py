"""The endpoints of a server, and the page, which is page.html beside this module.

    POST /translate      or the path of another row of `nmt.serving.tasks`: answers to the lines of a request
    GET /models          the models that requests can name, the default first, and what each can do
    GET /health          whether the server is ready, and its default model
    GET /metrics         counts for Prometheus
    GET /openapi.json    the description of all this
    GET /                the page

Every error is JSON, {"error": TEXT}. The page, /models and /health are for everyone; the rest asks for
`serve.token` if there is one. A server for this machine alone answers only under the names of this machine,
so that no site that a user visits can give it a name of its own and read its answers (DNS rebinding). Nothing
is fetched from elsewhere: FastAPI's own pages, which would be, are switched off.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import hmac
import itertools
import json
import re
from collections.abc import Coroutine, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from nmt import __version__
from nmt.errors import UserError, suggest
from nmt.serving.answers import TooLarge, num_tokens
from nmt.serving.batcher import Answer, Batcher, Refused
from nmt.serving.configs import ServingConfig
from nmt.serving.counters import Counters, exposition
from nmt.serving.task import Asked, ServedTask, TextRequest
from nmt.serving.tasks import SERVED
from nmt.translation.requests import HALF

PAGE = Path(__file__).with_name("page.html")
CLIENT_LEFT = 499
"""Status, in the counts alone, of a request whose client did not wait for the answer."""
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
"""Hosts that this machine alone reaches."""
SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


@dataclasses.dataclass
class ServedModel:
    """A model that requests can name: the run as it is served, with limits of its own, and its queue."""

    name: str
    task: ServedTask[Any]
    batcher: Batcher
    counters: Counters

    @property
    def way(self) -> str:
        """What the model does, and at which path."""
        return f"{self.name} {self.task.does}: POST {self.task.path}"

    def described(self) -> dict[str, Any]:
        """Return what clients are told of the model."""
        task, limits = self.task, ("max_lines", "max_chars", "max_beam_size")
        return {
            "model": self.name,
            "task": task.run.cfg.task.value,
            "path": task.path,
            **task.facts(),
            "limits": {key: getattr(task.cfg, key) for key in limits},
        }

    async def answers(self, body: TextRequest, request: Request) -> list[Answer]:
        """Return the answers to a request, whose `body` is read; raise `HTTPException` if it gets none."""
        require_lines(body.lines, self.task.cfg)
        try:
            return await answered(self._answers(body), request, self.task.cfg.timeout_seconds)
        except Refused as error:
            raise HTTPException(503, str(error), {"Retry-After": str(error.retry_after)}) from error
        except TooLarge as error:
            raise HTTPException(413, str(error)) from error
        except UserError as error:
            raise HTTPException(422, str(error)) from error

    async def _answers(self, body: TextRequest) -> list[Answer]:
        """Return the answers to a request; raise `Refused` at once where the queue is full."""
        with self.batcher.reading():
            asked, tokens = await asyncio.to_thread(self._asked, body)  # others go on meanwhile
        queued = self.batcher.submit(asked.lines, tokens, asked.question)
        return asked.whole(await queued.done)

    def _asked(self, body: TextRequest) -> tuple[Asked, list[int]]:
        """Return what a request asks of the model, and the tokens of each line; long texts take seconds.

        Raises:
            TooLarge: the lines have more tokens than may wait.
            UserError: the model cannot do that.
        """
        asked = self.task.asked(body)
        tokens = num_tokens(self.task.run, asked.lines, asked.question, asked.numbers)
        most = self.task.cfg.queue_tokens
        if sum(tokens) > most:
            raise TooLarge(f"the lines have {sum(tokens):,} tokens, but at most {most:,} may wait")
        return asked, tokens


@dataclasses.dataclass
class Service:
    """What the endpoints need: the models, of which the first is the default, and the limits of all."""

    cfg: ServingConfig
    models: Sequence[ServedModel]
    counters: Counters
    """Counts of requests that are refused before it is known which model they are for."""

    @property
    def paths(self) -> set[str]:
        """The paths at which the models answer."""
        return {one.task.path for one in self.models}

    def model_for(self, path: str, name: str | None) -> ServedModel:
        """Return the model of that name, or the first that answers at `path`, where one does.

        Raises:
            HTTPException: there is none of that name, or it answers elsewhere.
        """
        if name is None:
            return next(one for one in self.models if one.task.path == path)
        named = {one.name: one for one in self.models}
        if name not in named:
            raise HTTPException(
                422, f"model: there is no {name!r}; the models are {', '.join(named)}{suggest(name, named)}"
            )
        if named[name].task.path != path:
            raise HTTPException(404, named[name].way)
        return named[name]

    def metrics(self) -> str:
        """Return the counts of the server and of all models in the text format of Prometheus."""
        every = [one.counters for one in self.models]
        refused = [] if self.counters in every else [self.counters]
        samples = [one.request_samples() for one in (*refused, *every)]
        samples += [one.counters.samples(one.batcher.queue) for one in self.models]
        return exposition(itertools.chain.from_iterable(samples))

    def require_token(self, request: Request) -> None:
        """Raise `HTTPException` unless the request has the token of the server, or there is none."""
        if self.cfg.token is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.cfg.token}".encode()):
            challenge = {"WWW-Authenticate": "Bearer"}
            raise HTTPException(401, "the header Authorization must be: Bearer TOKEN", challenge)

    async def require_local_name(self, request: Request) -> None:
        """Raise `HTTPException` for a request to a server for this machine alone under a name of others."""
        host = request.headers.get("host", "")
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        if self.cfg.host in LOOPBACK and name and name not in LOOPBACK:
            raise HTTPException(
                403,
                f"this server is for {self.cfg.host} alone, not for {name!r}; set serve.host to serve others",
            )


def make_app(service: Service) -> FastAPI:
    """Return the application."""
    app = FastAPI(
        title="nmt serve",
        version=__version__,
        openapi_url=None,  # FastAPI's own asks neither for the name nor for the token
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(service.require_local_name)],
    )
    page = PAGE.read_text(encoding="utf-8")
    _answer_errors(app, service)
    for task in SERVED.values():
        _answer_lines(app, service, task)
    _tell_of_models(app, service)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Return counts in the text format of Prometheus."""
        service.require_token(request)
        return PlainTextResponse(service.metrics(), headers=SAFE, media_type="text/plain; version=0.0.4")

    @app.get("/openapi.json", include_in_schema=False)
    async def describe(request: Request) -> Response:
        service.require_token(request)
        return JSONResponse(app.openapi(), headers=SAFE)

    @app.get("/", response_class=HTMLResponse)
    async def show_page() -> Response:
        """Return the page."""
        return HTMLResponse(page, headers={**SAFE, "Content-Security-Policy": policy(page)})

    return app


def _answer_lines(app: FastAPI, service: Service, task: type[ServedTask[Any]]) -> None:
    """Add the endpoint of a task, which points to that of the default model where no model has the task."""
    kind = task.body()
    body = {"schema": kind.model_json_schema()}
    described = {"requestBody": {"required": True, "content": {"application/json": body}}}

    @app.post(task.path, openapi_extra=described, include_in_schema=task.path in service.paths)
    async def answer(request: Request) -> Response:
        """Answer lines."""
        begun = monotonic()
        if task.path not in service.paths:
            raise HTTPException(404, service.models[0].way)
        service.require_token(request)
        body = parsed(await body_of(request, service.cfg), kind)
        model = service.model_for(task.path, body.model)
        request.state.counters = model.counters
        found = await model.answers(body, request)
        seconds = monotonic() - begun
        model.counters.answered(200)
        model.counters.request_seconds.observe(seconds)
        told = {task.answers_name: found, "model": model.name, "seconds": round(seconds, 4)}
        return JSONResponse(told, headers=SAFE)


def _tell_of_models(app: FastAPI, service: Service) -> None:
    """Add the endpoints that say what is served."""

    @app.get("/models")
    async def models() -> Response:
        """Tell which models requests can name, the default first, and what each can do."""
        return JSONResponse({"models": [one.described() for one in service.models]}, headers=SAFE)

    @app.head("/health", include_in_schema=False)  # how load balancers ask
    @app.get("/health")
    async def health() -> Response:
        """Tell whether the server is ready, and what its default model is."""
        told = {"status": "ready", "version": __version__, **service.models[0].described()}
        return JSONResponse(told, headers=SAFE)


def _answer_errors(app: FastAPI, service: Service) -> None:
    """Have every error answered in JSON, and counted where it is one of a task."""

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        if request.url.path in service.paths:
            getattr(request.state, "counters", service.counters).answered(error.status_code)
        told = error.detail.encode(errors="backslashreplace").decode()  # it may name half of a surrogate pair
        return JSONResponse({"error": told}, error.status_code, {**SAFE, **(error.headers or {})})

    @app.exception_handler(Exception)
    async def fail(request: Request, _: Exception) -> Response:
        told = "the server has failed at this request; its log says why"
        return await refuse(request, HTTPException(500, told))


def policy(page: str) -> str:
    """Return a Content-Security-Policy under which the script and the style of the page alone have effect."""
    digests = {
        tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, text in re.findall(r"<(script|style)>(.*?)</\1>", page, flags=re.DOTALL)
    }
    return (
        "default-src 'none'; "
        f"script-src 'sha256-{digests['script']}'; style-src 'sha256-{digests['style']}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


async def body_of(request: Request, cfg: ServingConfig) -> bytes:
    """Read the body of a request; raise `HTTPException` if it is none of JSON or too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # what a page of another site cannot send unasked
        raise HTTPException(415, f"Content-Type must be application/json, but is {kind or 'missing'}")
    try:
        return await asyncio.wait_for(_read(request, cfg.max_body_bytes), cfg.timeout_seconds)
    except asyncio.TimeoutError as error:
        raise HTTPException(408, f"the body did not come within {cfg.timeout_seconds:g} seconds") from error
    except ClientDisconnect as error:
        raise HTTPException(CLIENT_LEFT, "the client has left") from error


async def _read(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise HTTPException(413, f"the body has more than {most:,} bytes; send it in parts")
    return bytes(body)


def parsed(body: bytes, kind: type[TextRequest]) -> TextRequest:
    """Return the request of a `kind` in a body; raise `HTTPException` with all that is wrong with it."""
    try:
        content = json.loads(body)
        return kind.model_validate(content)
    except ValidationError as error:
        told = [f"{_place(problem['loc'])}: {problem['msg']}" for problem in error.errors()[:5]]
        raise HTTPException(422, "; ".join(told)) from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error


def _place(location: tuple[int | str, ...]) -> str:
    """Return the place of a problem, such as text[3]."""
    names = [f"[{name}]" if isinstance(name, int) else name for name in location]
    return "".join(name for name in names if name not in ("str", "list[str]")) or "the body"


def require_lines(lines: list[str], cfg: ServingConfig) -> None:
    """Raise `HTTPException` for lines that are too many or too long, or no lines."""
    if len(lines) > cfg.max_lines:
        raise HTTPException(413, f"text has {len(lines):,} lines, but at most {cfg.max_lines:,} are allowed")
    for number, line in enumerate(lines):
        if len(line) > cfg.max_chars:
            raise HTTPException(
                413, f"text[{number}] has {len(line):,} characters, but at most {cfg.max_chars:,} are allowed"
            )
        if "\n" in line:
            raise HTTPException(422, f"text[{number}] has a line feed; send a list of lines")
        if HALF.search(line):
            raise HTTPException(422, f"text[{number}] has half of a surrogate pair, which is no character")


async def answered(
    answers: Coroutine[Any, Any, list[Answer]], request: Request, seconds: float
) -> list[Answer]:
    """Wait for answers; raise `HTTPException` when they take too long or the client has left."""
    done, left = asyncio.ensure_future(answers), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((done, left), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            return done.result()
    finally:
        gone = left.done()
        left.cancel()
        done.cancel()
    if gone:
        raise HTTPException(CLIENT_LEFT, "the client has left")
    raise HTTPException(504, f"there was no answer within {seconds:g} seconds; send fewer lines at a time")


async def _disconnected(request: Request) -> None:
    """Wait until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
