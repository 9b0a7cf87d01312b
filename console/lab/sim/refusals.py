"""The ways in which a request is not served."""

from __future__ import annotations

from typing import Any, TypeAlias

Problem: TypeAlias = dict[str, Any]
"""One of pydantic's findings: type, loc, msg, input and, for some, ctx."""


class RefusedError(Exception):
    """A flat error body: HTTP status, error type and message."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.message, self.status, self.kind = message, status, kind


class InvalidError(Exception):
    """The body is not what its endpoint declares: FastAPI's findings, answered with 400."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems)
        self.problems = problems


class BrokenError(Exception):
    """Nobody catches it in the real server: 500 as plain text, and the connection is closed."""


class DroppedError(Exception):
    """The connection ends without an answer."""


def problem(kind: str, where: tuple[Any, ...], said: str, got: Any, **more: Any) -> Problem:
    """One finding about a place in the body."""
    found = {"type": kind, "loc": ("body", *where), "msg": said, "input": got}
    return {**found, "ctx": more} if more else found


def missing(where: tuple[Any, ...], got: Any) -> Problem:
    """A required field is not there."""
    return problem("missing", where, "Field required", got)


def no_object(where: tuple[Any, ...], got: Any) -> Problem:
    """Something else stands where an object belongs."""
    said = "Input should be a valid dictionary or object to extract fields from"
    return problem("model_attributes_type", where, said, got)


def no_list(where: tuple[Any, ...], got: Any) -> Problem:
    """Something else stands where a list belongs."""
    return problem("list_type", where, "Input should be a valid list", got)


def not_one_of(where: tuple[Any, ...], allowed: str, got: Any) -> Problem:
    """A word that is not among those allowed."""
    return problem("literal_error", where, f"Input should be {allowed}", got, expected=allowed)


def wrong_value(where: tuple[Any, ...], said: str, got: Any) -> Problem:
    """A validator of the endpoint's own objects."""
    return problem("value_error", where, f"Value error, {said}", got, error=ValueError(said))


def text(problems: tuple[Problem, ...], line: int, name: str, method: str, path: str) -> str:
    """All findings as the message of the error body."""
    count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}"
    listed = "".join(f"  {found!r}\n" for found in problems)
    file = "site-packages/sglang/srt/entrypoints/http_server.py"
    return (
        f'{count}:\n{listed}\n  File "{file}", line {line}, in {name}\n'
        f"    {method} {path} {list(problems)!r}"
    )
