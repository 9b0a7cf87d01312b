"""Partial answers as values: they grow, shrink, survive the disk, and are never damaged unseen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from remote.generate import facts, sampling
from remote.generate import partial as partials
from remote.generate.outcomes import Answer
from remote.generate.partial import Partial, Segment
from remote.generate.records import Usage
from remote.generate.sampling import SamplingError, translate

SERVERS = st.sampled_from(["a", "b", "c"])
IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


def segment(server: str, tokens: int, endpoint: Any = "generate") -> Segment:
    """A part of an answer."""
    return Segment(server, 3, tokens, endpoint, 0.5, "2026-01-01T00:00:00.000Z")


class Growing(RuleBasedStateMachine):
    """One answer, against a plain list of (server, ids)."""

    partial: Partial | None
    parts: list[tuple[str, list[int]]]

    @initialize(prompt=IDS)
    def begin(self, prompt: list[int]) -> None:
        self.prompt, self.partial, self.parts = prompt, None, []

    @rule(server=SERVERS, ids=IDS)
    def grow(self, server: str, ids: list[int]) -> None:
        part = segment(server, len(ids))
        self.partial = partials.grown(self.partial, part, ids, identity="i", prompt_ids=self.prompt)
        self.parts.append((server, ids))

    @rule(server=SERVERS)
    def a_server_is_degenerate(self, server: str) -> None:
        if self.partial is not None:
            self.partial = partials.without(self.partial, server)
            first = next((n for n, part in enumerate(self.parts) if part[0] == server), None)
            self.parts = self.parts[:first]

    @rule(turns=st.lists(st.dictionaries(TEXT, TEXT), max_size=2))
    def the_run_is_killed(self, turns: list[dict[str, str]]) -> None:
        if self.partial is not None:
            self.partial = partials.decode(partials.encode(self.partial, turns))
            assert self.partial is not None and self.partial.turns == turns

    @invariant()
    def nothing_is_lost(self) -> None:
        assert (self.partial is None) == (not self.parts)
        if self.partial is not None:
            assert self.partial.ids == [n for _, ids in self.parts for n in ids]
            assert [part.server for part in self.partial.segments] == [s for s, _ in self.parts]
            assert self.partial.tokens == len(self.partial.ids)
            assert self.partial.prompt_tokens == len(self.prompt)
            used = partials.usage(self.partial, 10**9)
            assert used == Usage(len(self.prompt), self.partial.tokens, self.partial.tokens)


TestGrowing = Growing.TestCase


@given(parts=st.lists(IDS, min_size=1, max_size=4), at=st.integers(0), by=st.integers(1, 2**30))
def test_a_changed_id_is_never_sent(parts: list[list[int]], at: int, by: int) -> None:
    """One outside the vocabulary would end the server."""
    whole: Partial | None = None
    for ids in parts:
        whole = partials.grown(whole, segment("a", len(ids)), ids, identity="i", prompt_ids=[1])
    assert whole is not None
    document = json.loads(bytes(partials.encode(whole, [])))
    part = document["parts"][at % len(parts)]
    part[at % len(part)] = (part[at % len(part)] + by) % 2**31
    assert partials.decode(msgspec.Raw(json.dumps(document).encode())) is None
    document["parts"].append([1])
    assert partials.decode(msgspec.Raw(json.dumps(document).encode())) is None
    assert partials.decode(msgspec.Raw(b'{"identity": 3}')) is None


def chat(**said: Any) -> Answer:
    """A chat answer that was broken off."""
    fields = {"content": None, "reasoning": None, "tool_calls": None, **said}
    return Answer(finish_reason="abort", usage=Usage(7, 5), model="m", **fields)


@given(reasoning=TEXT, content=TEXT)
def test_the_text_of_a_chat_answer_is_put_together_as_it_was(reasoning: str, content: str) -> None:
    """Whatever the parser stripped, thought and answer stand in their places."""
    base = partials.from_chat(
        chat(reasoning=reasoning, content=content), segment("a", 5, "chat"), "i"
    )
    if base is None:
        assert not (reasoning.strip("\ufffd ") or content.strip("\ufffd ")) or "think>" in content
        return
    text = partials.raw_text(base, "open")
    assert base.tokens == 5 and base.prompt_tokens == 7
    if base.reasoning and base.content:
        thought, _, rest = text.partition(partials.THINK_END)
        assert thought.rstrip("\n") == base.reasoning.rstrip("\n")
        assert rest.lstrip("\n") == base.content.lstrip("\n") and rest.startswith("\n")
    else:
        assert text == base.reasoning or text == base.content
    free = partials.raw_text(base, "free")
    assert free.endswith(text) and free.startswith("<think>\n" if base.reasoning else text)


def test_a_half_character_and_a_blank_are_not_gone_on_from() -> None:
    cut = partials.from_chat(chat(content="größer \ufffd"), segment("a", 5, "chat"), "i")
    assert cut is not None and cut.content == "größer"
    assert partials.from_chat(chat(content="\ufffd"), segment("a", 1, "chat"), "i") is None
    assert partials.from_chat(chat(), segment("a", 1, "chat"), "i") is None


BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 20,
    "seed": 3,
    "stop": ["x"],
    "rid": "r",
    "chat_template_kwargs": {"enable_thinking": False},
    "min_p": None,
}


def test_a_chat_request_in_the_words_of_generate() -> None:
    asked = translate(BODY, {"temperature": 0.6, "top_k": 20})
    assert asked.params == {
        "temperature": 0.6,
        "top_p": 1.0,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": 20,
        "sampling_seed": 3,
        "stop": ["x"],
    }
    assert asked.beside == {"rid": "r"}
    assert sorted(asked.template) == ["chat_template_kwargs", "messages"]
    assert not asked.thinks and not asked.offers_tools and not asked.constrained
    tools = translate({**BODY, "tools": [{"function": {"name": "f"}}]}, {})
    assert tools.offers_tools and tools.params["skip_special_tokens"] is False
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    grammar = translate({**BODY, "response_format": form}, {})
    assert json.loads(grammar.params["json_schema"]) == {"type": "object"}
    assert "begin anew" in grammar.constrained


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("best_of", 1),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("response_format", {"type": "xml"}),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        ("tools", [{"type": "function", "function": {"name": "f", "strict": True}}]),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(SamplingError) as caught:
        translate({**BODY, field: value}, {})
    assert "\n" not in str(caught.value)
    assert field in str(caught.value) or field in ("messages", "tools")
    assert "chat" in str(caught.value) or field == "response_format"


def test_what_the_chat_endpoint_would_take_from_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling is a part of what two servers must have in common."""
    here, there = "http://127.0.0.1:1", "http://10.0.0.1:1"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    info = {"model_path": str(folder), "sampling_defaults": "model", "reasoning_parser": "qwen3"}
    neutral = facts.read(info, here, {})
    assert neutral.defaults == facts.NEUTRAL and not neutral.why_not
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": true}')
    warm = facts.read(info, here, {})
    assert warm.defaults == {**facts.NEUTRAL, "temperature": 0.6}
    assert warm.identity != neutral.identity
    assert facts.read({**info, "sampling_defaults": "openai"}, here, {}).defaults == facts.NEUTRAL
    for change in ({"kv_cache_dtype": "fp8_e5m2"}, {"revision": "x"}, {"mamba_ssm_dtype": "b"}):
        assert facts.read({**info, **change}, here, {}).identity != warm.identity
    assert facts.read({**info, "port": 3, "mem_fraction_static": 0.8}, here, {}) == warm
    assert facts.read(info, here, {"top_p": 0.5}).identity != warm.identity
    # Elsewhere a folder of that name says nothing.
    far = facts.read(info, there, {})
    assert "set temperature, top_p and top_k" in far.why_not
    given = {"temperature": 1, "top_p": 1, "top_k": 5}
    assert not facts.read(info, there, given).why_not
    assert "other marks" in facts.read({**info, "reasoning_parser": "gpt-oss"}, here, {}).why_not
    # By its name in Hugging Face's cache.
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    kept = tmp_path / "hub" / "models--org--name"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("abc\n")
    (kept / "snapshots" / "abc").mkdir(parents=True)
    (kept / "snapshots" / "abc" / "config.json").write_text("{}")
    (kept / "snapshots" / "abc" / "generation_config.json").write_text('{"top_k": 7}')
    found = facts.read({**info, "model_path": "org/name"}, here, {}).defaults
    assert found is not None and found["top_k"] == 7
    monkeypatch.delenv("HF_HUB_CACHE")
    elsewhere = {**info, "model_path": "org/name", "download_dir": str(tmp_path / "hub")}
    found = facts.read(elsewhere, here, {}).defaults
    assert found is not None and found["top_k"] == 7


def test_a_run_is_checked_before_its_first_prompt() -> None:
    sampling.check_request({"top_p": 0.9, "extra_key": "k"})
    with pytest.raises(SamplingError, match="no echo with endpoint"):
        sampling.check_request({"echo": True})
