"""The lab model's chat template: as Jinja for the model folder, and as Python for the server."""

from __future__ import annotations

import json
from typing import Any

JINJA = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- (messages[0].content or '') + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + (messages[0].content or '') + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first %}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + (message.content or '') }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""


def _json(value: Any) -> str:
    # Transformers renders `tojson` with plain json.dumps and leaves non-ASCII as it is.
    return json.dumps(value, ensure_ascii=False)


def flat(content: Any) -> str:
    """A message's content as text: a string, or the text parts of a list."""
    if isinstance(content, list):
        return "".join(
            str(part.get("text", ""))
            for part in content
            if isinstance(part, dict) and part.get("type") == "text"
        )
    return "" if content is None else str(content)


def render(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, thinking: bool
) -> str:
    """The prompt for these messages, up to where the model begins to speak.

    ``tools`` and ``messages`` are as SGLang passes them on (``bodies.tools_for_template`` and
    ``messages_for_template``).
    """
    parts: list[str] = []
    first_is_system = bool(messages) and messages[0].get("role") == "system"
    system = flat(messages[0].get("content")) if first_is_system else ""
    if tools:
        parts.append("<|im_start|>system\n")
        if first_is_system:
            parts.append(system + "\n\n")
        parts.append("# Tools\n\nYou may call these functions:\n<tools>")
        parts += ["\n" + _json(tool) for tool in tools]
        parts.append("\n</tools><|im_end|>\n")
    elif first_is_system:
        parts.append(f"<|im_start|>system\n{system}<|im_end|>\n")
    for message in messages[first_is_system:]:
        role, content = message.get("role"), flat(message.get("content"))
        if role == "tool":
            parts.append(
                f"<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n"
            )
            continue
        parts.append(f"<|im_start|>{role}\n{content}")
        parts += [
            f"\n<tool_call>\n{_json(call.get('function'))}\n</tool_call>"
            for call in message.get("tool_calls") or []
        ]
        parts.append("<|im_end|>\n")
    parts.append("<|im_start|>assistant\n<think>\n")
    if not thinking:
        parts.append("\n</think>\n\n")
    return "".join(parts)
