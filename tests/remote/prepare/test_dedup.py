"""Duplicates: which are found, and who survives."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.prepare import dedup, text
from remote.prepare.errors import RecipeError
from tests.remote.prepare import synthetic
from tests.remote.prepare.conftest import Outcome, recipe_of, write_lines

STORY = (
    "The lamp keeper of Saltmere wrote down every ship that passed the light between dusk and"
    " dawn, and in the morning the harbour master read the list aloud to whoever stood on the"
    " quay, so that each family knew whose boat was still out and whose was home"
)


def ask(content: str, system: str = "") -> dict[str, Any]:
    turns = [{"role": "system", "content": system}] if system else []
    return {"messages": [*turns, {"role": "user", "content": content}]}


def kept(run: Callable[..., Outcome], tmp_path: Path, rows: list[Any], **recipe: Any) -> list[str]:
    write_lines(tmp_path / "rows.jsonl", rows)
    outcome = run(recipe_of({"name": "rows", "path": "rows.jsonl"}, **recipe))
    return [prompt["messages"][-1]["content"] for prompt in outcome.prompts]


def test_levels_find_more_and_more(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    rows = [
        ask(STORY),
        ask(STORY),
        ask(f"  {STORY.upper()}\n"),
        ask(STORY.replace("lamp keeper", "light keeper") + "."),
        ask("Describe a harbour at night in a few words that a child would understand at once."),
    ]
    counts = {
        level: len(kept(run, tmp_path, rows, dedup={"level": level}))
        for level in ("off", "exact", "normalised", "near")
    }
    assert counts == {"off": 5, "exact": 4, "normalised": 3, "near": 2}


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (ask(STORY + " in 1901"), ask(STORY + " in 1902"), "numbers are content"),
        (ask(STORY, "Answer in French."), ask(STORY + "!", "Answer in Dutch."), "other systems"),
        (ask("What is a quay?"), ask("What is a kay?"), "too short to compare"),
        (
            {"messages": [*ask(STORY)["messages"], {"role": "assistant", "content": "Yes."},
                          {"role": "user", "content": "Why?"}]},
            ask(STORY + " why?"),
            "more turns",
        ),
        (
            ask(f"```python\ndef Tide(x):\n    return x\n```\n{STORY}"),
            ask(f"```python\ndef tide(x):\n    return x\n```\n{STORY.replace('dusk', 'noon')}"),
            "case of code, and a higher bar for it",
        ),
    ],
)  # fmt: skip
def test_what_only_looks_alike_is_kept(
    tmp_path: Path, run: Callable[..., Outcome], first: Any, second: Any, why: str
) -> None:
    assert len(kept(run, tmp_path, [first, second])) == 2, why


def test_chinese_is_compared_by_characters(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    long = "请用简单的语言解释为什么港口的灯塔在夜里对每一艘经过的船都非常重要并举出几个例子说明"
    assert len(kept(run, tmp_path, [ask(long), ask(long + "吧")])) == 1
    assert len(kept(run, tmp_path, [ask(long), ask(long[::-1])])) == 2


def test_mathematics_needs_to_be_nearly_equal(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    first = f"How many lamps burn? {STORY} and 12 of 40 lamps burn"
    second = first.replace("in the morning", "in the evening")
    rows = [
        {"type": "GSM_Rephrased", "query": q, "original_question": q, "response": "1"}
        for q in (first, second)
    ]
    assert len(kept(run, tmp_path, rows)) == 2
    assert len(kept(run, tmp_path, rows, dedup={"near_math": 0.7})) == 1


def test_the_survivor_is_of_the_source_with_the_better_right(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    write_lines(tmp_path / "large.jsonl", [ask(STORY), ask("What is a buoy, and what a beacon?")])
    write_lines(tmp_path / "small.jsonl", [ask(STORY + ".")])
    outcome = run(
        recipe_of(
            {"name": "large", "path": "large.jsonl", "priority": 2},
            {"name": "small", "path": "small.jsonl", "priority": 1},
        )
    )
    assert outcome.dropped(0) == {"duplicate:near": 1}
    assert outcome.built.sources[0].lost_to == {"small": 1}
    assert outcome.dropped(1) == {}


def test_bands_find_what_the_threshold_asks() -> None:
    for threshold in (0.5, 0.7, 0.8, 0.9, 0.95):
        count, rows = dedup.bands(threshold)
        assert count * rows <= 128
        assert 1 - (1 - threshold**rows) ** count >= dedup.RECALL
    assert dedup.bands(0.8) == (21, 6)


def jaccard(first: str, second: str) -> float:
    one, two = (set(text.shingles(text.normalised(t))) for t in (first, second))
    return len(one & two) / len(one | two)


def test_found_pairs_are_near_and_near_pairs_are_found(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    """Against exact Jaccard over all pairs: the library estimates, bands may miss."""
    rng = random.Random(5)
    words = [f"{a}{b}" for a in "bcdfglmnprst" for b in ("ara", "eno", "ilu", "omi", "ura")]
    texts: list[str] = []
    for _ in range(150):
        base = [rng.choice(words) for _ in range(rng.randint(60, 120))]
        texts.append(" ".join(base))
        changed = list(base)
        for _ in range(rng.randint(0, 6)):
            changed[rng.randrange(len(changed))] = "changed"
        texts.append(" ".join(changed))
    survivors = set(kept(run, tmp_path, [ask(t) for t in texts]))
    missed = wrong = 0
    for n in range(0, len(texts), 2):
        similarity = jaccard(texts[n], texts[n + 1])
        both = {texts[n], texts[n + 1]} <= survivors and texts[n] != texts[n + 1]
        missed += both and similarity > 0.88
        wrong += not both and similarity < 0.66
    assert missed == 0
    assert wrong == 0
    assert 150 < len(survivors) < 300


def test_prompts_of_evaluation_sets_are_left_out(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    exam = [{"question": "Why is the sea salt?", "answer": "x"}, {"question": STORY, "answer": "x"}]
    write_lines(tmp_path / "exam.jsonl", exam)
    rows = [
        ask("why is the sea   SALT"),  # the whole of a short one
        ask(f"Continue this: {STORY[:140]} and what then?"),  # 13 words of a long one
        ask("Why is the sea salt in some places and fresh in others?"),  # holds the short one
        ask("Explain the tides."),
    ]
    write_lines(tmp_path / "rows.jsonl", rows)
    outcome = run(
        recipe_of({"name": "rows", "path": "rows.jsonl"}, decontaminate={"files": ["exam.jsonl"]})
    )
    assert outcome.dropped() == {"contaminated": 2}
    assert outcome.built.sources[0].examples["contaminated"][0][2] == "exam.jsonl"
    assert outcome.built.contaminating == 2


def test_an_evaluation_set_without_a_prompt_is_told_whatever_the_others_hold(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    write_lines(tmp_path / "rows.jsonl", [ask("Explain the tides.")])
    for name, question in (("exam", STORY), ("copy", STORY), ("void", " ")):
        write_lines(tmp_path / f"{name}.jsonl", [{"question": question, "answer": "x"}])
    source = {"name": "rows", "path": "rows.jsonl"}
    run(recipe_of(source, decontaminate={"files": ["exam.jsonl", "copy.jsonl"]}))
    with pytest.raises(RecipeError, match=r"no prompt found in void\.jsonl"):
        run(recipe_of(source, decontaminate={"files": ["exam.jsonl", "void.jsonl"]}))


def test_synthetic_rows_hold_the_duplicates_put_in(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    synthetic.write(tmp_path / "rows.jsonl", 1500)
    outcome = run(recipe_of({"name": "rows", "path": "rows.jsonl"}))
    dropped = outcome.dropped()
    assert dropped["duplicate:exact"] >= 5
    assert dropped["empty_user"] > 20
