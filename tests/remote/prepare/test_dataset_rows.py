"""Rows of every known dataset: each a request or a drop with a named cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.prepare.budget import Bound
from remote.prepare.convert import Candidate, Converter, Place, Verdict
from remote.prepare.rows import Drop, Notes
from tests.remote.prepare.conftest import Outcome, body_of, read_lines, recipe_of, write_lines


def convert(rows: list[Any], **source: Any) -> list[Candidate | Verdict]:
    recipe = recipe_of({"name": "rows", "path": "unused", **source})
    converter = Converter(recipe, recipe.sources[0], Bound())
    placed = [(Place("rows", n), row) for n, row in enumerate(rows)]
    return [result for _, result in converter.convert(placed)[0]]


def notes_of(row: Any, **source: Any) -> Notes:
    recipe = recipe_of({"name": "rows", "path": "unused", **source})
    notes = Notes()
    Converter(recipe, recipe.sources[0], Bound()).requests(row, notes)
    return notes


def request_of(row: Any, **source: Any) -> dict[str, Any]:
    recipe = recipe_of({"name": "rows", "path": "unused", **source})
    made = Converter(recipe, recipe.sources[0], Bound()).requests(row, Notes())[0]
    assert len(made) == 1
    return body_of(made[0])


# What a verdict of the reference rows comes to: the note it leaves, and what must be true.
NOTED = {
    "trim_leading_assistant": "trim_leading_assistant",
    "merge_or_drop:consecutive_user": "merge:consecutive_user",
    "hoist_or_drop:late_system": "hoist:late_system",
    "join_systems": "join_systems",
    "map_roles": "map_roles",
    "flag:chat_markup_in_text": "flag:chat_markup_in_text",
    "repair:strip_nul": "repair:strip_nul",
    "decode_twice": "decode_twice",
    "drop_or_rename:duplicate_tool": "duplicate_tool",
    "rename_tool": "rename_tool",
    "strip_history_think": "strip_history_think",
}
UNCHANGED = {"keep_as_is", "keep_one_record", "keep_first", "keep_both"}


def test_every_oddity_gets_the_verdict_expected(dataset_rows: Path) -> None:
    rows = read_lines(dataset_rows / "oddities.jsonl")
    assert len(rows) == 26
    verdicts = {}
    for odd in rows:
        case, expect, row = odd["case"], odd["expect"], odd["row"]
        (result,) = convert([row])
        if isinstance(result, Verdict):
            verdicts[case] = f"drop:{result.cause}"
        else:
            verdicts[case] = expect
            notes = notes_of(row)
            if expect in NOTED:
                assert set(notes) == {NOTED[expect]}, case
            elif expect in UNCHANGED:
                assert not notes, case
            else:
                # Judged against the rows before it, below.
                assert expect == "drop:duplicate", case
    assert verdicts == {odd["case"]: odd["expect"] for odd in rows}


def test_oddities_come_out_as_they_should(dataset_rows: Path) -> None:
    rows = {odd["case"]: odd["row"] for odd in read_lines(dataset_rows / "oddities.jsonl")}

    def messages(case: str) -> list[tuple[str, Any]]:
        return [(m["role"], m["content"]) for m in request_of(rows[case])["messages"]]

    assert messages("starts_with_assistant") == [("user", "What is a quay?")]
    assert messages("two_user_turns") == [("user", "Name a knot.\n\nMake it short.")]
    assert messages("system_in_middle")[0] == ("system", "Answer in French.")
    assert messages("system_in_middle")[-1] == ("user", "What is a quay?")
    assert messages("two_systems")[0] == ("system", "Be brief.\n\nBe kind.")
    assert messages("role_alias")[0] == ("system", "Be brief.")
    assert messages("role_alias")[2] == ("assistant", "Hi.")
    assert messages("nul_byte") == [("user", "Nulinside")]
    assert messages("already_thinking")[1] == ("assistant", "Hello.")
    assert messages("surrogate_spelled_out") == [("user", "A broken pair \\ud83d stays here.")]
    marked = messages("special_token_in_text")[0][1]
    assert "<|im_end|>" not in marked
    assert "<think>" not in marked
    assert "im_end" in marked
    call = request_of(rows["sharegpt_aliases"])["messages"][1]["tool_calls"][0]
    assert call["function"] == {"name": "get_depth", "arguments": "{}"}
    for case in ("tools_double_encoded", "tools_duplicate_names"):
        (tool,) = request_of(rows[case])["tools"]
        assert tool["function"]["name"] == "get_tide_table"
    (tool,) = request_of(rows["tool_name_bad_chars"])["tools"]
    assert tool["function"]["name"] == "get_depth"


def test_of_the_same_question_twice_the_first_is_kept(
    dataset_rows: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    rows = {odd["case"]: odd["row"] for odd in read_lines(dataset_rows / "oddities.jsonl")}
    metamath = read_lines(dataset_rows / "metamathqa.jsonl")
    pair = [rows["duplicate_of_previous_a"], rows["duplicate_of_previous_b"]]
    # Only the numbers differ between these two: different problems.
    write_lines(tmp_path / "rows.jsonl", [*pair, rows["numbers_differ_only"], metamath[0]])
    outcome = run(recipe_of({"name": "rows", "path": "rows.jsonl"}))
    assert outcome.dropped() == {"duplicate:normalised": 1}
    texts = {prompt["messages"][0]["content"] for prompt in outcome.prompts}
    assert "What is a quay?" in texts
    assert "what is a  QUAY?" not in texts
    assert len(texts) == 3


def test_every_row_of_every_dataset_is_a_request_or_a_named_drop(dataset_rows: Path) -> None:
    skipped = {"oddities.jsonl", "raw_broken_lines.jsonl", "expected_hermes_to_request.jsonl"}
    dropped: dict[str, list[str]] = {}
    adapters: dict[str, set[str]] = {}
    files = [p for p in sorted(dataset_rows.glob("*.jsonl")) if p.name not in skipped]
    assert len(files) >= 23
    for path in files:
        for result in convert(read_lines(path)):
            if isinstance(result, Verdict):
                assert result.cause
                dropped.setdefault(path.stem, []).append(result.cause)
                continue
            line = json.loads(result.line)
            assert line["messages"][-1]["role"] in ("user", "tool")
            assert all(m["role"] != "system" for m in line["messages"][1:])
            assert any(m["role"] == "user" for m in line["messages"])
            assert "<tools>" not in result.line.decode()
            adapters.setdefault(path.stem, set()).add(result.meta["adapter"])
    assert dropped == {
        "tulu3_sft_mixture": ["skipped:source"],
        "wildclaw_http_bodies": ["image", "responses_api_body"],
        "wildclawbench_trajectories": ["empty_trajectory"],
    }
    assert adapters["infinity_instruct_0625"] == {"infinity_instruct"}
    assert adapters["webinstructsub"] == {"webinstruct_sub"}
    assert adapters["codefeedback_filtered"] == {"codefeedback"}
    assert adapters["metamathqa"] == {"metamathqa"}
    assert adapters["hermes_glaive_func_calling"] == {"hermes"}
    assert adapters["hermes_json_mode_agentic"] == {"hermes_json_mode"}
    assert adapters["agent_training_chatml"] == {"agent_training"}
    assert adapters["agentinstruct"] == {"agentinstruct"}
    assert adapters["adp_sft_openhands"] == {"agent_data_collection"}
    assert adapters["xlam_function_calling"] == {"xlam"}
    assert adapters["ultrachat_200k_train_gen"] == {"ultrachat"}
    assert adapters["openhermes_2_5"] == {"openhermes"}
    assert adapters["tulu3_sft_mixture"] == {"tulu"}
    assert adapters["wildchat_1m"] == {"wildchat"}
    assert adapters["lmsys_chat_1m"] == {"lmsys_chat"}
    assert adapters["magpie_pro"] == {"magpie"}
    assert adapters["open_perfectblend"] == {"sharegpt"}
    assert adapters["wildclaw_http_bodies"] == {"http_body", "http_envelope"}
    assert adapters["wildclawbench_trajectories"] == {"wildclaw_trajectory"}


def test_golden_requests_are_equal_as_json(dataset_rows: Path) -> None:
    golden = read_lines(dataset_rows / "expected_hermes_to_request.jsonl")
    assert len(golden) == 3
    for expected in golden:
        row = read_lines(dataset_rows / f"{expected['from_fixture']}.jsonl")[expected["row"]]
        assert request_of(row) == expected["request"], expected["note"]


def test_glaive_arguments_within_a_string_become_one_object(dataset_rows: Path) -> None:
    first, second = read_lines(dataset_rows / "hermes_glaive_func_calling.jsonl")
    request = request_of(first)
    call = request["messages"][1]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {"amount": 5, "src": "m", "dst": "ft"}
    assert request["messages"][2] == {
        "role": "tool",
        "tool_call_id": "call_0",
        "content": '{"feet": 16.4}',
    }
    assert len(request["tools"]) == 1
    # Without tools its system text says so, and stays.
    assert "tools" not in request_of(second)
    assert request_of(second)["messages"][0]["role"] == "system"


def test_json_mode_stays_plain_or_asks_for_the_schema(dataset_rows: Path) -> None:
    row = read_lines(dataset_rows / "hermes_json_mode_singleturn.jsonl")[0]
    assert request_of(row).keys() == {"messages"}
    wanted = request_of(row, json_schema="response_format")["response_format"]
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["name"] == "Boat"
    assert wanted["json_schema"]["schema"]["required"] == ["name", "length_m"]


def test_captured_bodies_lose_parameters_and_credentials(dataset_rows: Path) -> None:
    rows = read_lines(dataset_rows / "wildclaw_http_bodies.jsonl")
    body = request_of(rows[0])
    assert body.keys() == {"messages", "tools", "tool_choice"}
    kept = request_of(rows[0], mapping={"form": "body", "sampling": True})
    assert kept["temperature"] == 0.7
    enveloped = request_of(rows[3])
    assert enveloped == {
        "messages": [{"role": "user", "content": "Say hello to the harbour master."}]
    }
    lines = [r.line for r in convert(rows) if isinstance(r, Candidate)]
    assert not any(b"FIXTURE-NOT-A-KEY" in line for line in lines)


def test_each_keeps_questions_only_and_never_for_tools(dataset_rows: Path) -> None:
    chat = read_lines(dataset_rows / "ultrachat_200k_train_sft.jsonl")[0]
    (result,) = convert([chat], tail="each")
    assert isinstance(result, Candidate)
    line = json.loads(result.line)
    assert line["mode"] == "each"
    assert [m["role"] for m in line["messages"]] == ["user", "user"]
    assert line["max_tokens"] < 4096  # both answers must fit
    tooled = read_lines(dataset_rows / "hermes_func_calling.jsonl")[0]
    (result,) = convert([tooled], tail="each")
    assert isinstance(result, Candidate)
    line = json.loads(result.line)
    assert "mode" not in line
    assert line["messages"][-1]["role"] == "tool"


def test_as_is_takes_only_what_already_waits_for_an_answer(dataset_rows: Path) -> None:
    waiting = read_lines(dataset_rows / "ultrachat_200k_train_gen.jsonl")
    assert all(isinstance(r, Candidate) for r in convert(waiting, tail="as_is"))
    answered = read_lines(dataset_rows / "ultrachat_200k_train_sft.jsonl")
    causes = {r.cause for r in convert(answered, tail="as_is") if isinstance(r, Verdict)}
    assert causes == {"ends_with_assistant"}


def test_a_tool_row_fans_out_into_one_prompt_a_turn(dataset_rows: Path) -> None:
    row = read_lines(dataset_rows / "hermes_func_calling.jsonl")[1]
    results = convert([row], fan_out=True)
    lines = [json.loads(r.line) for r in results if isinstance(r, Candidate)]
    assert [line["id"].partition("#")[2] for line in lines] == ["0", "1", "2"]
    assert [line["messages"][-1]["role"] for line in lines] == ["user", "tool", "user"]
    assert lines[2]["messages"][-1]["content"] == "And 20?"


def test_a_declared_mapping_is_all_a_new_dataset_needs() -> None:
    mapping = {
        "messages": "log.turns",
        "role": "who",
        "content": "says",
        "roles": {"visitor": "user", "desk": "assistant"},
        "id": "log.number",
        "skip": {"log.kind": ["test*"]},
    }
    row = {
        "log": {
            "number": 7,
            "kind": "real",
            "turns": [
                {"who": "visitor", "says": "When does the ferry leave?"},
                {"who": "desk", "says": "At noon."},
            ],
        }
    }
    (result,) = convert([row], mapping=mapping)
    assert isinstance(result, Candidate)
    assert result.meta["own_id"] == "7"
    assert json.loads(result.line)["messages"] == [
        {"role": "user", "content": "When does the ferry leave?"}
    ]
    (result,) = convert([{"log": {**row["log"], "kind": "testing"}}], mapping=mapping)
    assert isinstance(result, Verdict)
    assert result.cause == "skipped:log.kind"


def test_unknown_columns_are_a_named_drop() -> None:
    recipe = recipe_of({"name": "rows", "path": "unused"})
    with pytest.raises(Drop, match="unknown_columns"):
        Converter(recipe, recipe.sources[0], Bound()).requests({"left": 1, "right": 2}, Notes())
