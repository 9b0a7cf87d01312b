"""The lab's prompts."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

from console.lab import prompts


def test_shipped_prompts_are_of_the_run_s_form() -> None:
    """Messages that end with the user, tools as functions, ids of their own."""
    shipped = prompts.shipped()
    assert len(shipped) > 100
    assert len({prompt["id"] for prompt in shipped}) == len(shipped)
    assert {prompt["source"] for prompt in shipped} == {f"lab/{name}" for name in prompts.SETS}
    for prompt in shipped:
        assert prompt["messages"][-1]["role"] == "user"
        for tool in prompt.get("tools", []):
            function = tool["function"]
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function["name"])
            assert set(function["parameters"]["required"]) <= set(
                function["parameters"]["properties"]
            )
    assert sum("tools" in prompt for prompt in shipped) == 30


def test_expanded_prompts_are_all_different() -> None:
    """Round after round, with the same prompts for the same place."""
    shipped = prompts.shipped()
    count = 40 * len(shipped) + 7
    made = list(prompts.expand(shipped, count))
    assert len(made) == count
    assert len({json.dumps(prompt["messages"]) for prompt in made}) == count
    assert len({prompt["id"] for prompt in made}) == count
    assert not any(re.search(r"\{\d+\}", json.dumps(prompt["messages"])) for prompt in made)
    assert made[: len(shipped)] == list(prompts.expand(shipped, len(shipped)))
    assert list(itertools.islice(prompts.expand(shipped, 10**9), 5)) == made[:5]


def test_first_round_has_the_numbers_that_stand_there() -> None:
    """And a number without braces never changes."""
    prompt = {"id": "a", "messages": [{"role": "user", "content": "{7} of 12 and {30}"}]}
    first, second = prompts.expand([prompt], 2)
    assert first == {"id": "a-0000", "messages": [{"role": "user", "content": "7 of 12 and 30"}]}
    assert second["messages"][0]["content"].startswith("8 of 12 and ")


def test_file_is_whole(tmp_path: Path) -> None:
    """One JSON object a line, and no part left behind."""
    path = tmp_path / "prompts.jsonl"
    assert prompts.write(path, prompts.expand(prompts.shipped(), 200)) == 200
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert [json.loads(line)["id"] for line in lines[:2]] == ["general-000-0000", "maths-000-0000"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["prompts.jsonl"]
