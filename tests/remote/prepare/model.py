"""A model folder of our own: a small byte-level tokenizer and a chat template of Qwen's manner."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEMPLATE = r"""
{%- macro call(c) -%}
<tool_call>
<function={{ c.function.name }}>
{%- for key, value in c.function.arguments|items %}
<parameter={{ key }}>
{{ value if value is string else value|tojson }}
</parameter>
{%- endfor %}
</function>
</tool_call>
{%- endmacro -%}
{%- if messages[0].role == 'system' -%}
  {%- set system = messages[0].content -%}
  {%- set turns = messages[1:] -%}
{%- else -%}
  {%- set system = '' -%}
  {%- set turns = messages -%}
{%- endif -%}
{%- if tools -%}
<|im_start|>system
# Tools

These functions can be called:

<tools>
{%- for tool in tools %}
{{ tool|tojson }}
{%- endfor %}
</tools>

A call is written as:

<tool_call>
<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
</tool_call>
{%- if system %}

{{ system }}
{%- endif %}<|im_end|>
{% elif system -%}
<|im_start|>system
{{ system }}<|im_end|>
{% endif -%}
{%- for m in turns -%}
{%- if m.role == 'system' -%}
  {{- raise_exception('a system message must come first') -}}
{%- elif m.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else -%}
<|im_start|>{{ m.role }}
{{ m.content or '' }}
{%- for c in m.tool_calls or [] %}
{{ call(c) }}
{%- endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif -%}
{%- endif -%}
"""

MARKERS = [
    "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>",
]  # fmt: skip


def make(folder: Path, texts: list[str]) -> Path:
    """A model folder whose vocabulary was learnt from ``texts``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=MARKERS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder
