"""Turns to messages: laws that hold for whatever a row holds, and what never gets through."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.prepare.conversation import Rules, requests
from remote.prepare.rows import Draft, Drop, Notes
from remote.prepare.text import Markers, redact
from tests.remote.prepare.conftest import body_of

_texts = st.sampled_from(
    ["Hi.", "", "  ", "<think>so</think>Yes.", "<think>never closed", "so</think>Yes.",
     "<scratch_pad>x</scratch_pad>", "a\0b",
     "<|im_end|>", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "<tool_call>{",
     "<tool_response>{}</tool_response>", "<function=f></function>", "What is a quay?"]
) | st.none() | st.lists(st.just({"type": "text", "text": "part"}), max_size=2)  # fmt: skip
_calls = st.lists(
    st.sampled_from(
        [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"function": {"name": "g h", "arguments": {"x": 1}}},
            {"function": {"name": "f", "arguments": "[1]"}},
            {"name": "f"},
        ]
    ),
    max_size=2,
)
_turn = st.fixed_dictionaries(
    {"role": st.sampled_from("system user assistant tool function_call observation model".split())},
    optional={"content": _texts, "tool_calls": _calls, "tool_call_id": st.sampled_from("ab")},
)
_rules = st.builds(
    Rules,
    tail=st.sampled_from(["last", "each", "as_is"]),
    fan_out=st.booleans(),
    late_system=st.sampled_from(["hoist", "drop"]),
    consecutive_user=st.sampled_from(["merge", "drop"]),
    markers=st.sampled_from(["escape", "drop"]),
)
_tools = st.sampled_from([None, [], [{"name": "f"}], [{"name": "g h"}], "[{"])


@settings(max_examples=300, deadline=None)
@given(st.lists(_turn, max_size=8), _rules, _tools)
def test_a_request_is_one_that_a_server_takes(turns: list[Any], rules: Rules, tools: Any) -> None:
    try:
        made = requests(Draft(turns=turns, tools=tools), rules, Notes())
    except Drop:
        return
    assert made
    for request in made:
        roles = [m["role"] for m in request.messages]
        assert roles[-1] in ("user", "tool")
        assert "user" in roles
        assert "system" not in roles[1:]
        if request.mode != "each":
            assert all(pair != ("user", "user") for pair in itertools.pairwise(roles))
        else:
            assert set(roles) <= {"system", "user"}
            assert not request.tools
        known: set[str] = set()
        for message in request.messages:
            content = message["content"]
            assert content or message.get("tool_calls") or message["role"] == "tool"
            assert not Markers().found(content or "")
            assert "\0" not in (content or "")
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                known.add(call["id"])
            if message["role"] == "tool":
                assert message["tool_call_id"] in known
        assert json.loads(json.dumps(body_of(request))) == body_of(request)


@pytest.mark.parametrize(
    "secret",
    [
        "sk-" + "a1B2" * 8,
        "hf_" + "Ab1" * 9,
        "ghp_" + "Ab1" * 12,
        "AKIA" + "ABCDEFGH12345678",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_credentials_never_leave_a_captured_request(secret: str) -> None:
    turns = [
        {"role": "user", "content": f"Use {secret} for it."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "function": {"name": "f", "arguments": json.dumps({"key": secret})}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": f"export KEY={secret}"},
    ]
    draft = Draft(turns=turns, captured=True, tools=[{"name": "f", "description": secret}])
    notes = Notes()
    (request,) = requests(draft, Rules(), notes)
    text = json.dumps(body_of(request))
    assert json.dumps(secret)[1:-1].split("\\n")[0] not in text
    assert text.count("[redacted]") == 4
    assert notes["redact:credential"] == 4


def test_prose_is_no_credential() -> None:
    for text in ("The desk-mate asked risk-takers.", "Bearer of bad news", "hf_hub is a library"):
        assert redact(text) == (text, 0)


def test_markers_of_the_models_own_are_caught_too() -> None:
    markers = Markers(["[INST]", "<start_of_turn>", "  ", "<|eot_id|>", "<0x0A>", "<s>"])
    text = "Say [INST] and <start_of_turn> and <|eot_id|>, not [this one]."
    assert markers.found(text)
    escaped = markers.escape(text)
    assert escaped == "Say [ INST] and < start_of_turn> and < |eot_id|>, not [this one]."
    assert not markers.found(escaped)
    assert not markers.found("plain  text, a < b and c > d")
    assert not Markers().found("[INST]")


def test_markers_drop_the_row_where_the_recipe_says_so() -> None:
    draft = Draft(turns=[{"role": "user", "content": "What is <|im_start|>?"}])
    with pytest.raises(Drop, match="chat_markup_in_text"):
        requests(draft, Rules(markers="drop"), Notes())


def test_several_results_in_one_turn_answer_the_calls_in_order() -> None:
    turns = [
        {"from": "human", "value": "Both?"},
        {"from": "gpt", "value": '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>'},
        {
            "from": "tool",
            "value": "<tool_response>1</tool_response><tool_response>2</tool_response>",
        },
    ]
    (request,) = requests(Draft(turns=turns), Rules(), Notes())
    assert [(m["tool_call_id"], m["content"]) for m in request.messages[2:]] == [
        ("call_0", "1"),
        ("call_1", "2"),
    ]
