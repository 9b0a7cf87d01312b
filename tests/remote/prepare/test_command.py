"""The command: reports, exit status, and every mistake in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from remote.prepare.command import run
from remote.prepare.recipe import load, shipped
from tests.remote.prepare import synthetic
from tests.remote.prepare.conftest import read_lines, write_lines

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(recipe: str) -> None:
    Path("recipe.toml").write_text(recipe)


GOOD = '[[sources]]\nname = "a"\npath = "a.jsonl"\n'


def test_a_report_in_the_terminal_and_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.write(Path("a.jsonl"), 400)
    write('name = "Trial <1>"\nseed = 4\n' + GOOD)
    assert run(["recipe.toml", "-o", "out.jsonl", "--report", "--workers", "1"]) == 0
    shown = capsys.readouterr().out
    assert "empty_user" in shown
    assert "expected output" in shown
    assert "█" in shown
    assert re.search(r"≤ \d+", shown)
    assert max(map(len, shown.splitlines())) < 160
    page = Path("out.report.html").read_text()
    assert "Trial &lt;1&gt;" in page
    assert page.count("<svg") >= 4
    assert not re.search(r"(?:src|href)\s*=|@import|url\(", page)  # nothing is fetched
    parser = HTMLParser()
    parser.feed(page)
    parser.close()
    document = json.loads(Path("out.manifest.json").read_text())
    assert document["output"]["lines"] == len(read_lines(Path("out.jsonl")))
    assert not Path("out.jsonl.work").exists()


def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.write(Path("a.jsonl"), 60)
    write(GOOD)
    assert run(["recipe.toml", "--json", "--workers", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["output"]["path"] == "prompts.jsonl"
    assert document == json.loads(Path("prompts.manifest.json").read_text())


def test_the_manifest_is_the_same_bytes_too() -> None:
    synthetic.write(Path("a.jsonl"), 200)
    write(GOOD)
    texts = []
    for _ in range(2):
        assert run(["recipe.toml", "--workers", "1"]) == 0
        texts.append(Path("prompts.manifest.json").read_bytes())
    assert texts[0] == texts[1]


def test_a_shortfall_is_exit_status_1() -> None:
    synthetic.write(Path("a.jsonl"), 60)
    write(GOOD + "quota = 100\n")
    assert run(["recipe.toml", "--workers", "1"]) == 1
    assert Path("prompts.jsonl").exists()


def test_other_quotas_need_no_second_reading(capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.write(Path("a.jsonl"), 60)
    write(GOOD + "quota = 10\n")
    assert run(["recipe.toml", "--keep-work", "--workers", "1"]) == 0
    write(GOOD + "quota = 20\n")
    assert run(["recipe.toml", "--workers", "1"]) == 0
    assert "60 rows were done already" in capsys.readouterr().err
    assert len(read_lines(Path("prompts.jsonl"))) == 20
    assert not Path("prompts.jsonl.work").exists()


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        ("", "missing required field sources"),
        ("sources = []", "no [[sources]]"),
        ("sead = 1\n" + GOOD, "unknown key 'sead' (did you mean 'seed'?)"),
        (GOOD + 'adaptor = "x"', "source a: unknown key 'adaptor' (did you mean 'adapter'?)"),
        (GOOD + 'adapter = "metamath"', "unknown adapter 'metamath' (did you mean 'metamathqa'?)"),
        (GOOD + 'mapping = { promt = "x" }', "mapping: unknown key 'promt' (did you mean 'prompt'"),
        (GOOD + 'mapping = { tools = "x" }', "needs one of messages, prompt and template"),
        ("[budget]\nfloor = 9000\n" + GOOD, "budget.floor must be above 0"),
        (
            "[budget]\ncontexts = 1\n" + GOOD,
            "budget: unknown key 'contexts' (did you mean 'context'",
        ),
        (GOOD + "quota = -1", "quota must not be negative"),
        (GOOD + "share = 0.5", "share needs mix.total"),
        (GOOD + 'quota = "many"', "expected int | null, got str - at sources[0].quota"),
        (GOOD + 'tail = "middle"', "invalid enum value 'middle' - at sources[0].tail"),
        (GOOD + 'domain = "maths"', "unknown domain 'maths' (did you mean 'math'?)"),
        (GOOD + 'hub = "x/y"', "give one of path, bodies and hub"),
        (GOOD + GOOD, "two sources are called 'a'"),
        ("x = [", "recipe.toml: "),
        (GOOD.replace("a.jsonl", "b.jsonl"), "b.jsonl: no such file"),
        (
            GOOD + 'mapping = { prompt = "qestion" }',
            "no column 'qestion' (did you mean 'question'?)",
        ),
        ('[decontaminate]\nfiles = ["exam.jsonl"]\n' + GOOD, "exam.jsonl: no such file"),
        ('[budget]\ntokenizer = "model"\n' + GOOD, "model: no tokenizer.json there"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    recipe: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(Path("a.jsonl"), [{"question": "What is a quay?"}])
    write(recipe)
    assert run(["recipe.toml"]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert not Path("prompts.jsonl").exists()


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([{"left": 1, "right": 2}], "no adapter knows the columns left, right; declare a mapping"),
        ([7, 8], "none of its first rows can be read (not_an_object)"),
    ],
)
def test_rows_nobody_knows_are_an_error_at_once(
    lines: list[object], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(Path("a.jsonl"), lines)
    write(GOOD)
    assert run(["recipe.toml"]) == 2
    assert text in capsys.readouterr().err


def test_an_empty_source_is_a_shortfall_and_not_a_mistake() -> None:
    Path("a.jsonl").touch()
    write(GOOD + "quota = 5\n")
    assert run(["recipe.toml"]) == 1
    assert Path("prompts.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (".", "is a folder"),
        ("nowhere/p.jsonl", "no such folder"),
    ],
)
def test_where_to_write_is_checked_first(
    output: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(Path("a.jsonl"), [{"question": "What is a quay?"}])
    write(GOOD)
    assert run(["recipe.toml", "-o", output]) == 2
    assert text in capsys.readouterr().err


def test_a_missing_recipe_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gone/recipe.toml"]) == 2
    assert "gone/recipe.toml: no such recipe" in capsys.readouterr().err
    assert run(["six-source-blnd"]) == 2
    assert "did you mean 'six-source-blend'?" in capsys.readouterr().err


def test_shipped_recipes_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(shipped()) == {"infinity-instruct", "six-source-blend"}
    blend = load(Path("six-source-blend"))
    quotas = {source.name: source.quota for source in blend.sources}
    assert sum(q or 0 for q in quotas.values()) == 193_753
    assert quotas["infinity-instruct"] == 99_000
    assert load(Path("infinity-instruct")).sources[0].quota == 654_676
    assert run(["--list"]) == 0
    assert "six-source-blend" in capsys.readouterr().out


def test_a_missing_library_is_named_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(Path("a.jsonl"), [{"question": "What is a quay?"}])
    write(GOOD)
    monkeypatch.setitem(sys.modules, "rensa", None)
    assert run(["recipe.toml"]) == 2
    assert "pip install 'stoker[prepare]'" in capsys.readouterr().err


def test_it_starts_without_anything_heavy() -> None:
    code = (
        "import sys, remote.prepare.command as c\n"
        "try: c.run(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'datasets', 'pyarrow', 'rensa', 'textual', 'rich', 'console'}\n"
        "sys.exit(f'imported: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "--report" in done.stdout


def test_counts_are_checked_against_the_first_replies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    synthetic.write(Path("a.jsonl"), 40)
    write(GOOD)
    assert run(["recipe.toml", "--workers", "1"]) == 0
    rows = read_lines(Path("prompts.rows.jsonl"))
    folder = Path("run")
    folder.mkdir()

    def replies(offset: int, *, exact: bool, mode: str = "last") -> int:
        capsys.readouterr()
        known = [{**row, "exact": exact, "mode": mode} for row in rows]
        write_lines(Path("prompts.rows.jsonl"), known)
        records = [
            {"index": row["index"], "usage": {"prompt_tokens": row["prompt_tokens"] + offset}}
            for row in rows
        ]
        write_lines(folder / "completions_000000.jsonl.open", records)
        with (folder / "completions_000000.jsonl.open").open("a") as out:
            out.write('{"index": 3, "us')  # torn by a kill
        return run(["-o", "prompts.jsonl", "--check", "run"])

    assert run(["-o", "prompts.jsonl", "--check", "run"]) == 1
    assert "no completion with usage" in capsys.readouterr().err
    assert replies(0, exact=True) == 0
    assert "counts as we did" in capsys.readouterr().out
    assert replies(2, exact=True) == 1
    assert "template" in capsys.readouterr().out
    assert replies(-30, exact=False) == 0
    assert "the bound holds" in capsys.readouterr().out
    assert replies(5, exact=False) == 1
    assert "more than the bound" in capsys.readouterr().out
    assert replies(900, exact=True, mode="each") == 1  # what is told is the sum of its turns
    assert "none of its replies can be compared" in capsys.readouterr().err
