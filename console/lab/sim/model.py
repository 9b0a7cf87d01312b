"""The lab's model folder: configuration, tokenizer and chat template, without any weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from console.lab.sim import capacity, template, tokens

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "layer_types": ["full_attention" if n % 4 == 3 else "linear_attention" for n in range(64)],
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_value_heads": 48,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": capacity.QWEN36_27B.context,
        "dtype": "bfloat16",
    },
    "dtype": "bfloat16",
}


def tokenizer_json() -> dict[str, Any]:
    """The tokenizer in the format of Hugging Face's ``tokenizers``."""
    letters = tokens.byte_letters()
    table = tokens.tokenizer().table
    marks = len(tokens.SPECIAL)
    vocabulary = {
        (piece.decode() if n < marks else "".join(letters[byte] for byte in piece)): n
        for n, piece in enumerate(table)
    }
    added = [
        {
            "id": n,
            "content": mark,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": n < tokens.HIDDEN,
        }
        for n, mark in enumerate(tokens.SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": tokens.PATTERN},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": False,
                    "use_regex": False,
                },
            ],
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {
            "type": "WordPiece",
            "unk_token": "<|endoftext|>",
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": 1_000_000,
            "vocab": vocabulary,
        },
    }


def write(folder: Path) -> None:
    """Write the model's files; existing ones are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    end = "<|im_end|>"
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": "<|endoftext|>",
        "model_max_length": capacity.QWEN36_27B.context,
        "clean_up_tokenization_spaces": False,
        "chat_template": template.JINJA,
    }
    files: dict[str, Any] = {
        "config.json": CONFIG,
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": settings,
        "generation_config.json": {
            "do_sample": True,
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 20,
            "eos_token_id": [tokens.tokenizer().eos],
        },
    }
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template.JINJA, encoding="utf-8")
