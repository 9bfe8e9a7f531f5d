"""The application: what each path answers. Every path is fixed, and its file is read when the server starts."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.sse import format_sse_event
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from cdcd._version import __version__
from cdcd.serving.completions import canvases_of, complete, settings_of
from cdcd.serving.generation import Prompt, generate, words_in
from cdcd.serving.guard import TooLargeError, error_body
from cdcd.serving.jobs import Event, Job, QueueFullError
from cdcd.serving.limits import Limits
from cdcd.serving.models import Models, Served
from cdcd.serving.recipes import text_command, text_python, translation_command, translation_python
from cdcd.serving.replay import replay_of, static
from cdcd.serving.requests import Completion, Counting, Generation, Translation
from cdcd.serving.translation import Sentence, translate

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FILES = (
    *(
        "style.css",
        "icon.svg",
        "app.js",
        "chart.js",
        "column.js",
        "dom.js",
        "editor.js",
        "panel.js",
    ),
    *("playground.js", "share.js", "stream.js", "tokens.js", "translate.js", "viewer.js"),
)
"""The files of the page, besides index.html."""
OPEN_PATHS = frozenset(("/", "/health", *(f"/static/{name}" for name in FILES)))


def make_app(models: Models, limits: Limits) -> FastAPI:
    """Returns the application of some models."""
    app = FastAPI(title="cdcd", docs_url=None, redoc_url=None, openapi_url=None)
    _add_pages(app)
    _add_descriptions(app, models)
    _add_generation(app, models, limits)
    _add_completions(app, models, limits)
    _add_errors(app)
    return app


# The page, and what there is


def _add_pages(app: FastAPI) -> None:
    def serve(path: str, name: str) -> None:
        content, kind = static(name).encode(), KINDS[name.rpartition(".")[2]]

        async def file() -> Response:
            return Response(content, media_type=f"{kind}; charset=utf-8")

        app.get(path)(file)

    serve("/", "index.html")
    for name in FILES:
        serve(f"/static/{name}", name)


def _add_descriptions(app: FastAPI, models: Models) -> None:
    @app.get("/health")
    async def health() -> dict[str, Any]:
        waiting = sum(len(each.worker) for each in models)
        return {"status": "ok", "version": __version__, "waiting": waiting}

    @app.get("/models")
    async def describe() -> dict[str, Any]:
        return {"models": [each.description() for each in models]}

    @app.get("/v1/models")
    async def names() -> dict[str, Any]:
        rows = [{"id": each.name, "object": "model", "owned_by": "cdcd"} for each in models]
        return {"object": "list", "data": rows}


# Generation


def _add_generation(app: FastAPI, models: Models, limits: Limits) -> None:
    @app.post("/count")
    async def count(asked: Counting) -> dict[str, Any]:
        tokenizer = models.named(asked.model, translator=False).model.tokenizer
        return {"tokens": len(tokenizer.encode(asked.text))}

    @app.post("/generate")
    async def stream_text(asked: Generation) -> Response:
        served, prompt = prompt_of(asked)
        known: set[int] = set()

        def work(job: Job) -> dict[str, Any]:
            recipes = {
                "command": text_command(served.source, prompt),
                "python": text_python(served.source, prompt),
            }
            return generate(served.model, prompt, job.emit) | recipes

        def completed(event: Event) -> Any:
            # The words that a client lacks depend on the frames that it gets.
            is_frame = event.kind == "frame"
            words = words_in(served.model, event.data, known) if is_frame else None
            return event.data | {"words": words} if words else event.data

        return _stream(served, work, completed)

    @app.post("/replay")
    async def replay(asked: Generation, request: Request) -> Response:
        served, prompt = prompt_of(asked)
        event = await _last_event(
            request, served, lambda job: replay_of(served.model, served.source, prompt, job.check)
        )
        named = {"content-disposition": 'attachment; filename="replay.html"'}
        return HTMLResponse(event.data, headers=named)

    @app.post("/translate")
    async def stream_translations(asked: Translation) -> Response:
        served = models.named(asked.model, translator=True)
        sentence = Sentence(
            text=asked.text,
            num_samples=asked.num_samples,
            seed=asked.seed,
            utility=asked.utility,
            settings=asked.settings,
        )
        sentence.check(served.model, limits)

        def work(job: Job) -> dict[str, Any]:
            return translate(served.model, sentence, job.emit) | {
                "command": translation_command(served.source, sentence),
                "python": translation_python(served.source, sentence),
            }

        return _stream(served, work)

    def prompt_of(asked: Generation) -> tuple[Served, Prompt]:
        served = models.named(asked.model, translator=False)
        prompt = Prompt(
            text=asked.text,
            seed=asked.seed,
            settings=served.forced | asked.settings,
            changes=asked.changes,
        )
        prompt.check(served.model, limits)
        return served, prompt


def _add_completions(app: FastAPI, models: Models, limits: Limits) -> None:
    @app.post("/v1/completions")
    async def completions(asked: Completion, request: Request) -> Response:
        served = models.named(asked.model, translator=False)
        canvases = canvases_of(served.model, asked, limits)
        served.model.settings(settings_of(served.model, asked))
        event = await _last_event(
            request, served, lambda job: complete(served.model, asked, canvases, job.check)
        )
        about = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": served.name,
        }
        answer = about | event.data
        if not asked.stream:
            return JSONResponse(answer)
        parts = (json.dumps(answer), "[DONE]")
        content = b"".join(format_sse_event(data_str=part) for part in parts)
        return Response(content, media_type="text/event-stream")


# Jobs and their answers


def _submitted(served: Served, work: Callable[[Job], Any]) -> Job:
    job = Job(work)
    try:
        served.worker.submit(job)
    except QueueFullError:
        waiting = served.worker.most_waiting
        raise HTTPException(
            429,
            f"{waiting} requests wait for {served.name} already; try again in a while",
            {"retry-after": "5"},
        ) from None
    return job


class JobResponse(StreamingResponse):
    """The events of a job; however the answer ends, so does the job."""

    def __init__(self, content: AsyncIterator[bytes], job: Job) -> None:
        super().__init__(content, media_type="text/event-stream")
        self.job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.job.cancel()


def _stream(
    served: Served,
    work: Callable[[Job], Any],
    completed: Callable[[Event], Any] = lambda event: event.data,
) -> StreamingResponse:
    """Answers with the events of a job as server-sent events."""
    job = _submitted(served, work)

    async def content() -> AsyncIterator[bytes]:
        async for event in job.events():
            text = json.dumps(completed(event), ensure_ascii=True, separators=(",", ":"))
            yield format_sse_event(data_str=text, event=event.kind)

    return JobResponse(content(), job)


async def _last_event(request: Request, served: Served, work: Callable[[Job], Any]) -> Event:
    """Returns the end of a job that has no stream; where the client leaves, the job is cancelled."""
    job = _submitted(served, work)
    waiting, leaving = asyncio.create_task(job.last()), asyncio.create_task(_left(request))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise HTTPException(499, "the client has left")
        event = waiting.result()
    finally:
        job.cancel()
        waiting.cancel()
        leaving.cancel()
    if event.kind == "error":
        is_mistake = event.data["type"] == "invalid_request_error"
        raise HTTPException(400 if is_mistake else 500, event.data["message"])
    return event


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Errors


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ValueError)
    async def mistaken(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(str(error)), 400)

    @app.exception_handler(TooLargeError)
    async def too_large(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body("the body is larger than allowed"), 413)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        kind = "error" if error.status_code >= 500 else "invalid_request_error"
        body = error_body(str(error.detail), kind)
        return JSONResponse(body, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        what = f"{where[:100]}: {first['msg']}" if where else first["msg"]
        return JSONResponse(error_body(what.encode("utf-8", "replace").decode()), 400)
