"""Tokens, template, answers, parsers: everything between a prompt and its answer."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.lab.sim import answers, bodies, core, engine, model, parsers, prose, template
from console.lab.sim.answers import VARIANTS, Style
from console.lab.sim.prose import OPENINGS
from console.lab.sim.tokens import SPECIAL, tokenizer

SHARED = Path(__file__).parents[4] / "shared"
QUESTION = "How many apples are left in the third basket?"
TOOL = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Paris", "Oslo"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
            "exact": {"type": "boolean"},
            "places": {"type": "array", "items": {"type": "number"}, "minItems": 2},
            "more": {
                "type": "object",
                "properties": {"why": {"type": "string"}},
                "required": ["why"],
            },
        },
        "required": ["city", "days", "exact", "places", "more"],
    },
}


def prompt(text: str = QUESTION, thinking: bool = True, **more: Any) -> list[int]:
    messages = [{"role": "user", "content": text}]
    return tokenizer().encode(template.render(messages, more.get("tools"), thinking=thinking))


@given(st.text() | st.lists(st.sampled_from([*SPECIAL, "hi", "\n", "é"])).map("".join))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    ids = tokenizer().encode(text)
    assert tokenizer().decode(ids, skip_special=False) == text
    assert tokenizer().valid(ids)


def test_marks_are_one_token_and_three_of_them_are_hidden() -> None:
    assert [len(tokenizer().encode(mark)) for mark in SPECIAL] == [1] * len(SPECIAL)
    text = "<|im_start|>a<think>b</think>c<|im_end|>"
    assert tokenizer().decode(tokenizer().encode(text)) == "a<think>b</think>c"


def test_english_costs_about_as_many_tokens_as_with_a_real_tokenizer() -> None:
    text = "\n".join((prose.__doc__ or "", engine.__doc__ or "", core.__doc__ or ""))
    assert 2.5 < len(text) / len(tokenizer().encode(text)) < 5


def test_the_model_folder_describes_this_very_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model.write(tmp_path)
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (
        QUESTION,
        "  a\n\n\nb\t\tc",
        "é漢字🙂 x_y-z 12345",
        "<|im_start|>user\nhi<|im_end|>",
    ):
        ids = other.encode(text, add_special_tokens=False).ids
        assert ids == tokenizer().encode(text)
        assert other.decode(ids, skip_special_tokens=True) == tokenizer().decode(ids)


def test_the_model_folder_has_what_a_client_reads(tmp_path: Path) -> None:
    model.write(tmp_path)
    read = {path.name: path.read_text() for path in tmp_path.iterdir()}
    config = json.loads(read["config.json"])["text_config"]
    assert (config["num_hidden_layers"], config["linear_num_value_heads"]) == (64, 48)
    assert config["layer_types"].count("full_attention") == 16
    vocabulary = json.loads(read["tokenizer.json"])["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(tokenizer())))
    assert json.loads(read["tokenizer_config.json"])["chat_template"] == template.JINJA


CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é <b>?"}],
    [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "get_weather", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "sunny"},
    ],
]


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("thinking", [True, False])
def test_the_jinja_template_and_the_server_agree(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, thinking: bool
) -> None:
    jinja2 = pytest.importorskip("jinja2")
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert jinja2.__version__
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    rendered = environment.from_string(template.JINJA).render(
        messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=thinking
    )
    assert rendered == template.render(messages, tools, thinking=thinking)


def test_tools_reach_the_template_as_each_release_hands_them_over() -> None:
    """The texts are what the real releases' own classes made of these tools."""
    sent = [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "w",
                "parameters": {"type": "object"},
                "more": 1,
            },
        },
        {"type": "function", "function": {"name": "f", "strict": True}, "zzz": 1},
        {"function": {"parameters": {}, "name": "g"}, "defer_loading": True},
        {"type": "function", "function": {}},
    ]

    def text(*, new: bool, **more: Any) -> list[str]:
        made = bodies.tools_for_template({"tools": sent, **more}, new=new)
        return [json.dumps(tool) for tool in made]

    assert text(new=False) == [
        (
            '{"type": "function", "function": {"description": "w", "name": "get_weather", '
            '"parameters": {"type": "object"}, "strict": false}, "defer_loading": null}'
        ),
        (
            '{"type": "function", "function": {"description": null, "name": "f", '
            '"parameters": null, "strict": true}, "defer_loading": null}'
        ),
        (
            '{"type": "function", "function": {"description": null, "name": "g", '
            '"parameters": {}, "strict": false, "defer_loading": true}, "defer_loading": true}'
        ),
    ]
    new = [
        (
            '{"type": "function", "function": {"name": "get_weather", "description": "w", '
            '"parameters": {"type": "object"}}, "defer_loading": null}'
        ),
        (
            '{"type": "function", "function": {"name": "f", "strict": true, '
            '"description": null, "parameters": null}, "defer_loading": null}'
        ),
        (
            '{"type": "function", "function": {"parameters": {}, "name": "g", '
            '"description": null, "defer_loading": true}, "defer_loading": true}'
        ),
    ]
    assert text(new=True) == new
    assert text(new=True, tool_choice={"function": {"name": "f"}}) == new[1:2]
    assert bodies.tools_for_template({"tools": sent, "tool_choice": "none"}, new=True) == []
    assert bodies.tools_for_template({}, new=False) == []


def test_arguments_of_earlier_calls_reach_the_template_as_objects() -> None:
    def calling(arguments: str) -> list[dict[str, Any]]:
        call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
        return [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]

    given = calling('{"x": 1}')
    made = bodies.messages_for_template([*given, "nonsense"])
    assert made[0] == given[0]
    function = {"name": "f", "arguments": {"x": 1}}
    assert made[1]["tool_calls"] == [{"id": "a", "function": function}]
    assert bodies.messages_for_template(calling("torn {")) == calling("torn {")


def test_the_same_prompt_has_the_same_answer_and_another_prompt_another() -> None:
    style = Style(words=QUESTION)
    one, again = (answers.compose(prompt(), 0, style) for _ in range(2))
    assert one.ids(one.total) == again.ids(again.total)
    texts = {answers.compose(prompt(f"Question {n}"), 0, style).text(400) for n in range(50)}
    texts |= {answers.compose(prompt(), n, style).text(400) for n in range(VARIANTS)}
    assert len(texts) == 50 + VARIANTS


def test_lengths_have_the_mean_that_is_asked_for_and_a_tail_beyond_the_limit() -> None:
    lengths = [answers.compose(prompt(f"{n}"), 0, Style()).total for n in range(600)]
    assert statistics.mean(lengths) == pytest.approx(2711, rel=0.05)
    assert statistics.mean(min(n, 4096) for n in lengths) == pytest.approx(2711, rel=0.05)
    assert 0.02 < sum(n > 4096 for n in lengths) / 600 < 0.12
    assert max(lengths) > 5000
    assert min(lengths) > 800
    short = [answers.compose(prompt(f"{n}"), 0, Style(length_mean=200)).total for n in range(200)]
    assert statistics.mean(short) == pytest.approx(200, rel=0.1)


def test_text_and_tokens_of_every_prefix_belong_together() -> None:
    plan = answers.compose(prompt(), 3, Style(length_mean=300, words=QUESTION))
    whole = plan.ids(plan.total)
    assert whole[-1] == tokenizer().eos
    assert tokenizer().encode(plan.text(plan.total)) == whole[:-1]
    for count in range(plan.total + 1):
        assert plan.ids(count) == whole[:count]
        assert plan.text(count) == tokenizer().decode(whole[:count])


@given(
    st.integers(0, VARIANTS - 1),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from([{}, {"tools": [TOOL]}, {"schema": TOOL["parameters"]}]),
)
@settings(max_examples=60, deadline=None)
def test_any_part_of_any_answer_is_continued_to_the_token(
    variant: int, share: float, thinking: bool, kind: dict[str, Any]
) -> None:
    ids = prompt(thinking=thinking)
    style = Style(thinking=thinking, length_mean=300, words=QUESTION, **kind)
    if style.schema and not thinking:
        variant = 0  # such answers have no opening that tells them apart
    plan = answers.compose(ids, variant, style)
    whole = plan.ids(plan.total)
    cut = min(int(share * plan.total), plan.total - 1)
    if len(plan.text(cut)) < len(OPENINGS[variant]):
        cut = 0
    rest = answers.answer(ids, whole[:cut], None if cut else variant, style)
    assert whole[:cut] + rest.ids(rest.total) == whole
    text = plan.text(cut)
    by_text = answers.answer(ids, tokenizer().encode(text), None if cut else variant, style)
    assert text + by_text.text(by_text.total) == plan.text(plan.total)


def test_words_that_are_nobodys_are_continued_with_other_words() -> None:
    ids = prompt()
    rest = answers.answer(ids, tokenizer().encode("Quite something else"), None, Style())
    assert rest.total > 100
    over = answers.answer(ids, tokenizer().encode("Mine.\n</think>\n\nSo"), None, Style())
    assert "</think>" not in over.text(over.total)


def test_the_prompt_is_found_in_tokens_that_already_hold_an_answer() -> None:
    for thinking in (True, False):
        ids = prompt(thinking=thinking)
        assert answers.split(ids) == (len(ids), thinking)
        assert answers.split([*ids, 500, 501]) == (len(ids), thinking)
    assert answers.split(tokenizer().encode("no template here")) is None


def test_a_rendered_prompt_says_what_the_request_said() -> None:
    messages = CONVERSATIONS[2]
    text = template.render(messages, [TOOL], thinking=True)
    style = answers.style_of(text, thinking=True)
    assert style.tools == [TOOL]
    wrapped = [{"type": "function", "function": TOOL}]
    text = template.render(messages, wrapped, thinking=True)
    assert answers.style_of(text, thinking=True) == style
    assert style.after_tool
    assert not answers.style_of(
        template.render(messages[:1], None, thinking=True), thinking=True
    ).tools


def looped(text: str) -> bool:
    """Whether the end is one phrase, three times or more."""
    tail = text[-600:]
    return any(tail.endswith(tail[-size:] * 3) for size in range(4, 200))


def test_no_answer_is_empty_or_turns_in_circles() -> None:
    for n in range(60):
        plan = answers.compose(prompt(f"{n}"), n % VARIANTS, Style(words=QUESTION))
        reasoning, content = parsers.separate(plan.text(plan.total), thinking=True)
        assert reasoning
        assert content
        assert not looped(reasoning)
        assert not looped(content)


def satisfies(value: Any, schema: dict[str, Any]) -> bool:
    kinds: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
        "boolean": bool,
    }  # fmt: skip
    if "enum" in schema:
        return value in schema["enum"]
    if not isinstance(value, kinds[schema["type"]]):
        return False
    if schema["type"] == "object":
        inner = schema.get("properties", {})
        return set(schema.get("required", [])) <= set(value) and all(
            satisfies(part, inner[name]) for name, part in value.items()
        )
    if schema["type"] == "array":
        return len(value) >= schema.get("minItems", 0) and all(
            satisfies(part, schema["items"]) for part in value
        )
    low, high = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
    return schema["type"] not in ("integer", "number") or low <= value <= high


def test_tools_are_called_with_arguments_that_satisfy_their_schema() -> None:
    called = 0
    style = Style(tools=[TOOL], words=QUESTION, length_mean=300)
    for n in range(100):
        plan = answers.compose(prompt(f"{n}"), 0, style)
        _, content = parsers.separate(plan.text(plan.total), thinking=True)
        _, calls = parsers.calls(content, [TOOL], "qwen3_coder")
        called += bool(calls)
        for call in calls:
            assert call.name == "get_weather"
            assert satisfies(json.loads(call.arguments), TOOL["parameters"])  # type: ignore[arg-type]
    assert 75 <= called <= 98


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="no shared data")
def test_tools_of_a_public_benchmark_get_valid_calls() -> None:
    for line in (SHARED / "data" / "bfcl-live_parallel_multiple.jsonl").open():
        tools = json.loads(line)["function"]
        plan = answers.compose(prompt(line[:200]), 0, Style(tools=tools, must_call=True))
        _, content = parsers.separate(plan.text(plan.total), thinking=True)
        _, calls = parsers.calls(content, tools, "qwen3_coder")
        assert calls
        for call in calls:
            needed = next(t for t in tools if t["name"] == call.name)["parameters"]["required"]
            assert set(needed) <= set(json.loads(call.arguments))


@pytest.mark.parametrize(
    ("text", "thinking", "before", "expected"),
    [
        ("a\n</think>\n\nb", True, "", ("a\n", "b")),
        ("a", True, "", ("a", "")),
        ("a", False, "", ("", "a")),
        ("<think>a</think>b", False, "", ("a", "b")),
        ("b", True, "a</think>", ("", "b")),
        ("more\n</think>\nb", True, "some", ("more\n", "b")),
    ],
)
def test_reasoning_is_separated_as_the_qwen3_parser_does(
    text: str, thinking: bool, before: str, expected: tuple[str, str]
) -> None:
    assert parsers.separate(text, thinking=thinking, before=before) == expected


def test_the_newer_parser_strips_nothing() -> None:
    text = "<think>\na\n</think>\n\nb\n"
    assert parsers.separate(text, thinking=True, new=True) == ("\na\n", "\n\nb\n")
    assert parsers.separate(text, thinking=True) == ("a\n", "b")


def test_the_call_parsers_take_their_own_form_only() -> None:
    xml = (
        "Sure.\n<tool_call>\n<function=f>\n<parameter=x>\n3\n</parameter>\n</function>\n"
        "</tool_call>"
    )
    tools = [{"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}}]
    text, calls = parsers.calls(xml, tools, "qwen3_coder")
    assert (text, [call[:2] for call in calls]) == ("Sure.\n", [("f", '{"x": 3}')])
    assert parsers.calls(xml, tools, "qwen25") == (xml, [])
    as_json = '<tool_call>\n{"name": "f", "arguments": {"x": 3}}\n</tool_call>'
    assert parsers.calls(as_json, tools, "qwen25")[1] == [("f", '{"x": 3}', 0)]
