"""Reading requests and writing answers the way FastAPI and SGLang's handlers do."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from console.lab.sim import log
from console.lab.sim.refusals import (
    BrokenError,
    InvalidError,
    RefusedError,
    missing,
    no_object,
    problem,
)

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reply(value: Any, status: int = 200) -> web.Response:
    """A JSON answer, with the bare content type that the real server sends."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def error(message: str, status: int = 400, kind: str = "BadRequestError") -> web.Response:
    """An error of the OpenAI endpoints: flat, not below a key ``error``."""
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return reply(body, status)


async def read(request: web.Request, line: int, name: str, *, strict: bool = False) -> Any:
    """The JSON body of a request, as FastAPI reads it for the endpoint of this line and name.

    ``strict`` endpoints insist on the content type; the others see anything else as no object.
    """
    request["endpoint"] = (line, name)
    data = await request.read()
    if request.content_type != "application/json":
        if strict:
            said = "Unsupported Media Type: Only 'application/json' is allowed"
            found = {"loc": ["header", "content-type"], "msg": said, "type": "value_error"}
            raise RefusedError(f"1 validation error:\n  {found!r} {[found]!r}", 400, "Bad Request")
        if not data:
            raise InvalidError(missing((), None))
        raise InvalidError(no_object((), data))
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        pass
    try:  # the words of Python's own parser
        return json.loads(data)
    except json.JSONDecodeError as exc:
        at, said = exc.pos, exc.msg
    except UnicodeDecodeError:
        raise BrokenError("UnicodeDecodeError: the body is not UTF-8") from None
    raise InvalidError(problem("json_invalid", (at,), "JSON decode error", {}, error=said))


async def read_object(
    request: web.Request, line: int, name: str, *, strict: bool = False
) -> dict[str, Any]:
    """The JSON object of a request."""
    body = await read(request, line, name, strict=strict)
    if isinstance(body, dict):
        return body
    if strict:  # its own handling of the error fails
        raise BrokenError("TypeError: the body is not an object")
    raise InvalidError(no_object((), body))


def deprecated(old: str, new: str) -> None:
    """Log that an old path was called."""
    log.say(
        f"Endpoint '{old}' is deprecated and will be removed in a future version. "
        f"Please use '{new}' instead."
    )
