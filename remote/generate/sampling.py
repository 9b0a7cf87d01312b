"""An OpenAI-style request in the words of SGLang's ``/generate``.

Names and defaults after ``ChatCompletionRequest.to_sampling_params`` (SGLang 0.5.12,
``entrypoints/openai/protocol.py``) and ``SamplingParams`` (``sampling/sampling_params.py``), which
breaks on a name that it does not know. What has no counterpart is refused, never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from remote.generate.facts import NEUTRAL

_SAME = frozenset(
    "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty stop "
    "stop_token_ids stop_regex ignore_eos no_stop_trim skip_special_tokens logit_bias "
    "custom_params regex ebnf".split()
)
_RENAMED = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
_TEMPLATE = frozenset("messages tools tool_choice chat_template_kwargs reasoning_effort".split())
_BESIDE = frozenset("rid priority lora_path extra_key".split())
"""Fields of ``/generate`` itself."""
_NOTHING = {
    "model": None,
    "stream": None,
    "user": None,
    "n": 1,
    "logprobs": False,
    "separate_reasoning": True,
    "parallel_tool_calls": True,
}
"""Fields that change nothing here: with any value (None), or with this one."""


class SamplingError(Exception):
    """A request that ``/generate`` cannot be asked: one line that says which field."""


@dataclass(frozen=True)
class Asked:
    """One request, taken apart."""

    template: dict[str, Any]
    """What the prompt is rendered from."""
    params: dict[str, Any]
    """``sampling_params``; ``max_new_tokens`` is that of the whole answer."""
    beside: dict[str, Any]
    constrained: str
    """Why the answer cannot be continued once begun; empty where it can."""

    @property
    def thinks(self) -> bool:
        """Whether the request leaves thinking on."""
        extra = self.template.get("chat_template_kwargs") or {}
        if extra.get("enable_thinking") is False or extra.get("thinking") is False:
            return False
        return self.template.get("reasoning_effort") != "none" or bool(
            extra.get("enable_thinking") or extra.get("thinking")
        )

    @property
    def offers_tools(self) -> bool:
        """Whether a tool call may be in the answer."""
        return bool(self.template.get("tools")) and self.template.get("tool_choice") != "none"


def translate(body: dict[str, Any], defaults: dict[str, Any]) -> Asked:
    """Take a chat request apart; ``defaults`` are the server's where it leaves something open.

    :raises SamplingError: a field that has no counterpart.
    """
    params: dict[str, Any] = {**NEUTRAL, **defaults}
    template: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        if name in _SAME:
            params[name] = value
        elif name in _RENAMED:
            params[_RENAMED[name]] = value
        elif name in _TEMPLATE:
            template[name] = value
        elif name in _BESIDE:
            beside[name] = value
        elif name == "response_format":
            _format(value, params)
        elif name in _NOTHING:
            if _NOTHING[name] is not None and value != _NOTHING[name]:
                raise SamplingError(
                    f'{name} = {value!r} is not possible with endpoint "generate": leave it out, '
                    'or use endpoint "chat"'
                )
        else:
            raise SamplingError(
                f'no {name} with endpoint "generate": leave it out, or use endpoint "chat"'
            )
    if template.get("tool_choice", "auto") not in ("auto", "none"):
        raise SamplingError(
            'tool_choice other than auto or none needs endpoint "chat": only there the server '
            "makes a grammar of it"
        )
    try:
        _check_content(template)
    except msgspec.DecodeError as error:
        raise SamplingError(f"messages or tools that no server takes: {error}") from None
    if not isinstance(template.get("chat_template_kwargs", {}), dict):
        raise SamplingError("chat_template_kwargs is no object")
    if not isinstance(params.get("stop", ""), str | list):
        raise SamplingError("stop is neither a string nor a list of them")
    limit = params.get("max_new_tokens")
    if limit is not None and not isinstance(limit, int):
        raise SamplingError(f"max_tokens = {limit!r} is no whole number")
    if template.get("tools") and template.get("tool_choice") != "none":
        params.setdefault("skip_special_tokens", False)  # as chat has it, for the calls' marks
    grammar = next((name for name in _GRAMMARS if name in params), "")
    why = f"its grammar ({grammar}) would begin anew at the seam" if grammar else ""
    return Asked(template, params, beside, why)


def check_request(request: dict[str, Any]) -> None:
    """Refuse what a run asks every answer with, before the first prompt.

    :raises SamplingError: a field that has no counterpart.
    """
    translate(request, {})


def _format(value: Any, params: dict[str, Any]) -> None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return
    if kind == "json_object":
        params["json_schema"] = '{"type": "object"}'
    elif kind == "json_schema":
        named = value.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None
        params["json_schema"] = msgspec.json.encode(schema).decode()
    elif kind == "structural_tag":
        params["structural_tag"] = msgspec.json.encode(value).decode()
    else:
        raise SamplingError(f"response_format {kind!r} is not known")


class _Function(Struct):
    strict: bool | None = None


class _Tool(Struct):
    function: _Function | None = None


class _Message(Struct):
    content: Raw = Raw(b"null")


class _Part(Struct):
    type: str = "text"


def _check_content(template: dict[str, Any]) -> None:
    """Text only, and no tool whose arguments a grammar has to hold to."""
    messages = template.get("messages")
    if messages is not None:
        raw = messages if isinstance(messages, Raw) else msgspec.json.encode(messages)
        for message in msgspec.json.decode(raw, type=list[_Message]):
            if bytes(message.content)[:1] == b"[":
                parts = msgspec.json.decode(message.content, type=list[_Part])
                if other := next((part.type for part in parts if part.type != "text"), ""):
                    raise SamplingError(f'a message with {other} needs endpoint "chat"')
    tools = template.get("tools")
    if tools is not None:
        raw = tools if isinstance(tools, Raw) else msgspec.json.encode(tools)
        for tool in msgspec.json.decode(raw, type=list[_Tool]):
            if tool.function is not None and tool.function.strict:
                raise SamplingError(
                    'a tool with strict = true needs endpoint "chat": only there the server makes '
                    "a grammar of it"
                )
