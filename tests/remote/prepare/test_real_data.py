"""GSM8K, HumanEval and BFCL from their files to prompts that SGLang accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from remote.prepare import build as building
from remote.prepare import manifest
from remote.prepare.output import rows_path
from tests.remote.prepare.conftest import Quiet, read_lines, recipe_of


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    from tests.remote.prepare.conftest import REFERENCE

    data = REFERENCE / "data"
    if not data.is_dir():
        pytest.skip("real data is not here")
    output = tmp_path_factory.mktemp("real") / "prompts.jsonl"
    recipe = recipe_of(
        {"name": "gsm8k", "path": str(data / "gsm8k-*.jsonl"), "domain": "math"},
        {"name": "humaneval", "path": str(data / "humaneval.jsonl")},
        {"name": "bfcl", "path": str(data / "bfcl-*.jsonl")},
        seed=1,
    )
    built = building.build(recipe, output.parent, output, Quiet(), workers=1)
    return output, manifest.describe(built, output)


def test_every_row_becomes_a_prompt(prepared: tuple[Path, dict[str, object]]) -> None:
    prompts = read_lines(prepared[0])
    assert len(prompts) == 9380
    assert sum("tools" in prompt for prompt in prompts) == 424
    assert len({prompt["id"] for prompt in prompts}) == 9380
    by_source = [prompt["source"] for prompt in prompts]
    assert {name: by_source.count(name) for name in set(by_source)} == {
        "gsm8k": 8792,
        "humaneval": 164,
        "bfcl": 424,
    }


def test_tools_are_json_schema_with_names_that_are_allowed(
    prepared: tuple[Path, dict[str, object]],
) -> None:
    for prompt in read_lines(prepared[0]):
        assert prompt["messages"][-1]["role"] == "user"
        assert prompt["max_tokens"] <= 4096
        for tool in prompt.get("tools", ()):
            function = tool["function"]
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", function["name"])
            # What SGLang checks before it accepts a request.
            jsonschema.Draft202012Validator.check_schema(function["parameters"])
        names = [tool["function"]["name"] for tool in prompt.get("tools", ())]
        assert len(set(names)) == len(names)


def test_every_mapping_is_recorded(
    prepared: tuple[Path, dict[str, object]], real_data: Path
) -> None:
    output, document = prepared
    tools = document["tools"]
    assert isinstance(tools, dict)
    assert tools["types"] == {
        "dict → object": 867,
        "float → number": 245,
        "tuple → array": 4,
        "any → any": 3,
    }
    assert tools["renamed"]["spotify_play"] == "spotify.play"
    raw = {
        f"{row['id']}": {function["name"] for function in row["function"]}
        for path in sorted(real_data.glob("bfcl-*.jsonl"))
        for row in read_lines(path)
    }
    prompts = read_lines(output)
    rows = read_lines(rows_path(output))
    renamed = 0
    for prompt, row in zip(prompts, rows, strict=True):
        if "tools" not in prompt:
            continue
        back = row.get("renamed_tools", {})
        renamed += len(back)
        sent = {tool["function"]["name"] for tool in prompt["tools"]}
        assert {back.get(name, name) for name in sent} == raw[row["own_id"]]
    assert renamed == 411


def test_rows_say_where_each_prompt_came_from(
    prepared: tuple[Path, dict[str, object]], real_data: Path
) -> None:
    output, _ = prepared
    rows = read_lines(rows_path(output))
    prompts = read_lines(output)
    files = {path.name: path.read_bytes().split(b"\n") for path in real_data.glob("gsm8k-*.jsonl")}
    for prompt, row in list(zip(prompts, rows, strict=True))[:200]:
        if row["source"] == "gsm8k":
            line = files[Path(row["part"]).name][row["row"]]
            assert json.loads(line)["question"] == prompt["messages"][0]["content"]
    assert sum(row["language"] == "en" for row in rows) > 9300
