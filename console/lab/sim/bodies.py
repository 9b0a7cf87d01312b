"""What request bodies say: pure functions from JSON to what the simulation needs."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from console.lab.sim import template
from console.lab.sim.config import Config
from console.lab.sim.entry import Sampling
from console.lab.sim.refusals import (
    InvalidError,
    Problem,
    RefusedError,
    missing,
    no_list,
    no_object,
    not_one_of,
    problem,
    wrong_value,
)
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


def tools_for_template(body: dict[str, Any], *, new: bool) -> list[dict[str, Any]]:
    """A request's tools as SGLang hands them to the chat template (``serving_chat.py``).

    They come out of its own model of a tool (``Tool`` and ``Function`` in
    ``entrypoints/openai/protocol.py``), so a field that it does not know is dropped. 0.5.12 writes
    a function's fields in the model's order; 0.5.23 (``new``) in the order sent, those that were
    not sent last, ``strict`` only where it was. Where one is chosen by name, it alone is offered.
    """
    choice = body.get("tool_choice")
    tools = body.get("tools")
    if choice == "none" or not isinstance(tools, list):
        return []
    offered = [tool for tool in tools if functions([tool])]
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        offered = [tool for tool in offered if tool["function"]["name"] == name]
    return [_tool(tool, new=new) for tool in offered]


def _tool(tool: dict[str, Any], *, new: bool) -> dict[str, Any]:
    sent, defer = tool["function"], tool.get("defer_loading")
    fields = {"description": None, "name": None, "parameters": None, "strict": False}
    order = list(fields)
    if new:
        order = [
            *(key for key in sent if key in fields),
            *(key for key in fields if key not in sent),
        ]
    function = {key: sent.get(key, fields[key]) for key in order}
    if new and sent.get("strict") is None:
        del function["strict"]
    inner = sent.get("defer_loading")
    if (inner := defer if inner is None else inner) is not None:
        function["defer_loading"] = inner
    return {"type": tool.get("type", "function"), "function": function, "defer_loading": defer}


def messages_for_template(messages: list[Any]) -> list[dict[str, Any]]:
    """A request's messages as SGLang hands them over: arguments of calls parsed, where they can."""

    def parsed(call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            with contextlib.suppress(ValueError):
                arguments = json.loads(function["arguments"])
                return {**call, "function": {**function, "arguments": arguments}}
        return call

    return [
        {**message, "tool_calls": [parsed(call) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
        if isinstance(message, dict)
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


def inputs(body: dict[str, Any]) -> tuple[list[list[int]], bool]:
    """(prompts as tokens, whether they came as a batch) of a ``/generate`` request."""
    ids, text = body.get("input_ids"), body.get("text")
    if ids is not None:
        if not isinstance(ids, list):
            raise InvalidError(
                *(no_list(("input_ids", kind), ids) for kind in ("list[list[int]]", "list[int]"))
            )
        if not ids or [] in ids:
            raise RefusedError("input_ids cannot be empty.")
        return (ids, True) if isinstance(ids[0], list) else ([ids], False)
    encode = tokenizer().encode
    if text in ("", []):
        raise RefusedError("texts cannot be empty and tokenizer must be initialized")
    if isinstance(text, str):
        return [encode(text)], False
    if isinstance(text, list):
        return [encode(str(one)) for one in text], True
    raise RefusedError("Either text, input_ids or input_embeds should be provided.")


SAMPLING = {
    "custom_params", "ebnf", "frequency_penalty", "ignore_eos", "json_schema", "logit_bias",
    "max_new_tokens", "min_new_tokens", "min_p", "n", "no_stop_trim", "presence_penalty", "regex",
    "repetition_penalty", "sampling_seed", "skip_special_tokens", "spaces_between_special_tokens",
    "stop", "stop_regex", "stop_token_ids", "stream_interval", "structural_tag", "temperature",
    "top_k", "top_p",
}  # fmt: skip
"""Sampling parameters that ``/generate`` takes; another name breaks its handler."""

_WHOLE = ("max_tokens", "max_completion_tokens", "n", "seed", "top_k", "min_tokens")
REAL = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder")


def _numbers(body: dict[str, Any]) -> list[Problem]:
    """Turn numbers into those that the fields declare; what can't be is reported."""
    found: list[Problem] = []
    for names, kind, to, noun in (
        (_WHOLE, "int_parsing", int, "integer"),
        (REAL, "float_parsing", float, "number"),
    ):
        for name in names:
            value = body.get(name)
            if value is None:
                continue
            try:
                body[name] = to(value)
            except (ValueError, TypeError):
                said = f"Input should be a valid {noun}, unable to parse string as "
                said += "an integer" if noun == "integer" else "a number"
                found.append(problem(kind, (name,), said, value))
    return found


def _message(n: int, message: Any) -> list[Problem]:
    """Why this is no message."""
    general = ("messages", n, "ChatCompletionMessageGenericParam")
    user = ("messages", n, "ChatCompletionMessageUserParam")
    if not isinstance(message, dict):
        return [no_object(general, message), no_object(user, message)]
    role = message.get("role")
    if isinstance(role, str) and role.lower() in _ROLES:
        return []
    said = "'role' must be one of " + ", ".join(map(repr, _ROLES)) + " (case-insensitive)."
    found = (
        missing((*general, "role"), message)
        if role is None
        else wrong_value((*general, "role"), said, role)
    )
    if role != "user":
        return [found, not_one_of((*user, "role"), "'user'", role)]
    return [] if "content" in message else [found, missing((*user, "content"), message)]


def _declared(body: dict[str, Any], config: Config) -> None:
    """What pydantic says of a chat request; numbers are put right on the way."""
    found: list[Problem] = []
    messages, model = body.get("messages"), body.get("model")
    if messages is None:
        found.append(missing(("messages",), body))
    elif not isinstance(messages, list):
        found.append(no_list(("messages",), messages))
    else:
        for n, message in enumerate(messages):
            found += _message(n, message)
    if model is not None and not isinstance(model, str):
        found.append(problem("string_type", ("model",), "Input should be a valid string", model))
    found += _numbers(body)
    for n, tool in enumerate(body.get("tools") or []):
        if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
            found.append(missing(("tools", n, "function"), tool))
    choice = body.get("tool_choice")
    if isinstance(choice, str) and choice not in ("auto", "required", "none"):
        found.append(no_object(("tool_choice", "ToolChoice"), choice))
        where = ("tool_choice", "literal['auto','required','none']")
        found.append(not_one_of(where, "'auto', 'required' or 'none'", choice))
    effort = body.get("reasoning_effort")
    known = ["none", "low", "medium", "high", "max"]
    if config.new:
        known += ["minimal", "xhigh", "ultra"]
    if isinstance(effort, str) and effort not in known:
        words = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
        found.append(not_one_of(("reasoning_effort",), words, effort))
    if found:
        raise InvalidError(*found)


def check_chat(body: dict[str, Any], config: Config) -> None:
    """Refuse a chat request as the real server does: with its texts, in its order."""
    _declared(body, config)
    if not body["messages"]:
        raise RefusedError("Messages cannot be empty.")
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
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema" and schema(form) is None:
        raise RefusedError("schema_ is required for json_schema response format request.")
    if body.get("n") == 0:
        raise RefusedError("range() arg 3 must not be zero", 400, "BadRequest")
    extra = body.get("chat_template_kwargs") or {}
    trusted = getattr(config.args, "trust_request_chat_template", False)
    if config.new and "chat_template" in extra and not trusted:
        raise RefusedError("chat_template in chat_template_kwargs is not allowed.")
    if not body.get("top_k"):  # the model's own default
        body.pop("top_k", None)


def chat_prompt(body: dict[str, Any], *, new: bool) -> tuple[str, str, bool]:
    """(prompt, text to continue, thinking) of a chat request's messages."""
    messages = messages_for_template(body["messages"])
    extra = body.get("chat_template_kwargs") or {}
    effort = body.get("reasoning_effort")
    thinking = extra.get("enable_thinking", True) is not False
    if effort == "none" and "enable_thinking" not in extra:
        thinking = False
    before = ""
    if messages and messages[-1].get("role") == "assistant":
        if body.get("continue_final_message"):
            before = template.flat(messages[-1].get("content"))
            messages = messages[:-1]
        else:  # taken for one of the user's
            messages = [*messages[:-1], {**messages[-1], "role": "user"}]
    tools = tools_for_template(body, new=new)
    return template.render(messages, tools, thinking=thinking), before, thinking


def needs(body: dict[str, Any], *names: str) -> None:
    """Raise :class:`InvalidError` for members that a body lacks."""
    lacking = [name for name in names if name not in body]
    if lacking:
        raise InvalidError(*(missing((name,), body) for name in lacking))
