"""What request bodies say: pure functions from JSON to what the simulation needs."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from console.lab.sim.config import Config
from console.lab.sim.core import RefusedError, Sampling
from console.lab.sim.exchange import field
from console.lab.sim.tokens import tokenizer


def functions(tools: Any) -> list[dict[str, Any]]:
    """The members ``function`` of a request's tools."""
    if not isinstance(tools, list):
        return []
    return [
        tool["function"]
        for tool in tools
        if isinstance(tool, dict)
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
    ]


_JSON_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}


def bad_schema(schema: Any, depth: int = 0) -> str:
    """Why this is no JSON schema; empty where it is one as far as looked."""
    if schema is None or isinstance(schema, bool) or depth > 20:
        return ""
    if not isinstance(schema, dict):
        return f"{schema!r} is not of type 'object', 'boolean'"
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    for one in kinds:
        if one is not None and one not in _JSON_TYPES:
            return f"{kind!r} is not valid under any of the given schemas"
    required = schema.get("required")
    if required is not None and not isinstance(required, list):
        return f"{required!r} is not of type 'array'"
    below = [*(schema.get("properties") or {}).values()] if isinstance(
        schema.get("properties") or {}, dict
    ) else [schema["properties"]]  # fmt: skip
    if "items" in schema:
        below.append(schema["items"])
    return next((wrong for one in below if (wrong := bad_schema(one, depth + 1))), "")


def sampling(body: dict[str, Any], most: Any = None) -> Sampling:
    """Sampling parameters; ``most`` is max_new_tokens where the body has another name for it."""
    limit = most
    if limit is None:
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        if limit is None and body.get("max_tokens") == 0:
            limit = 0
    stop = body.get("stop")
    marks = [stop] if isinstance(stop, str) else [s for s in stop or [] if isinstance(s, str)]
    temperature, top_k = body.get("temperature"), body.get("top_k")
    seed = body.get("seed", body.get("sampling_seed"))
    return Sampling(
        max_new=limit if isinstance(limit, int) else None,
        temperature=float(temperature) if isinstance(temperature, int | float) else None,
        top_k=top_k if isinstance(top_k, int) else -1,
        stop=marks,
        ignore_eos=bool(body.get("ignore_eos")),
        seed=seed if isinstance(seed, int) else None,
    )


def schema(response_format: Any) -> dict[str, Any] | None:
    """The JSON schema that ``response_format`` asks for."""
    if not isinstance(response_format, dict):
        return None
    if response_format.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}}
    inner = response_format.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return schema if isinstance(schema, dict) else None


def schema_text(text: Any) -> dict[str, Any] | None:
    """A JSON schema given as text."""
    if isinstance(text, str):
        with contextlib.suppress(ValueError):
            schema = json.loads(text)
            return schema if isinstance(schema, dict) else None
    return None


def inputs(body: dict[str, Any]) -> list[list[int]]:
    """The prompts of a ``/generate`` request, as tokens."""
    ids, text = body.get("input_ids"), body.get("text")
    if ids:
        return ids if isinstance(ids[0], list) else [ids]
    if isinstance(text, str):
        return [tokenizer().encode(text)]
    if isinstance(text, list):
        return [tokenizer().encode(str(one)) for one in text]
    raise RefusedError("Either text, input_ids or input_embeds should be provided.")


def check_chat(body: dict[str, Any], config: Config) -> None:
    """Refuse a chat request as the real server does: with its texts, in its order."""
    messages = body.get("messages")
    if messages is None:
        raise RefusedError(field("missing", "messages", body), 400, "Bad Request")
    if not isinstance(messages, list):
        raise RefusedError(field("list_type", "messages", messages), 400, "Bad Request")
    if not messages:
        raise RefusedError("Messages cannot be empty.")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RefusedError(field("missing", "role", message), 400, "Bad Request")
    tools, choice = body.get("tools"), body.get("tool_choice")
    if choice == "required" and not tools:
        raise RefusedError("Tools cannot be empty if tool choice is set to required.")
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        if not tools:
            raise RefusedError("Tools cannot be empty if tool choice is set to a specific tool.")
        if all(function.get("name") != name for function in functions(tools)):
            raise RefusedError(f"Tool '{name}' not found in tools list.")
    for n, function in enumerate(functions(tools)):
        wrong = bad_schema(function.get("parameters"))
        if wrong:
            raise RefusedError(f"Tool {n} function has invalid 'parameters' schema: {wrong}")
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if config.context_given and isinstance(most, int) and most > config.context:
        raise RefusedError(
            f"max_completion_tokens is too large: {most}."
            f"This model supports at most {config.context} completion tokens."
        )
    extra = body.get("chat_template_kwargs") or {}
    trusted = getattr(config.args, "trust_request_chat_template", False)
    if config.new and "chat_template" in extra and not trusted:
        raise RefusedError("chat_template in chat_template_kwargs is not allowed.")
