"""Presets of the user's own, as files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from console import saved
from console.flags import BUILT_IN, Book
from console.model import State
from console.presets import starts
from remote.protocol import FlagCatalogue, FlagValue


@pytest.fixture(autouse=True)
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder of the test's own; where its presets will lie."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "stoker" / "presets"


EDITS: dict[str, FlagValue | None] = {
    "mem-fraction-static": 0.9,
    "disable-radix-cache": True,
    "enable-metrics": None,
    "served-model-name": 'a "quoted" \\ name\x7f 深',
    "cuda-graph-bs": [1, 2, 4],
}


def test_what_is_saved_is_read_again(presets: Path) -> None:
    """Whatever the values are; the same name again replaces it; removed it is gone."""
    assert saved.load_all() == ([], [])
    path = saved.save("  Night  run ", EDITS)
    assert path == presets / "night-run.toml"
    assert tomllib.loads(path.read_text("utf-8"))["flags"]["enable-metrics"] is False
    found, problems = saved.load_all()
    assert problems == []
    assert [(p.name, p.edits) for p in found] == [("Night run", EDITS)]
    saved.save("Night run", {"page-size": 64})
    saved.save("another", {"page-size": 1})
    assert [(p.name, p.edits) for p in saved.load_all()[0]] == [
        ("another", {"page-size": 1}),
        ("Night run", {"page-size": 64}),
    ]
    assert saved.remove("Night run") == path
    assert [p.name for p in saved.load_all()[0]] == ["another"]
    with pytest.raises(saved.SavedError, match="any more"):
        saved.remove("Night run")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "Invalid value"),
        ('name = "x"\n', "flags under .flags. are needed"),
        ('title = "x"\n[flags]\na = 1\n', "unknown key 'title'"),
        ("[flags]\nport = 1\n", "port cannot be set"),
        ("[flags]\napi-key = 'x'\n", "api-key cannot be set"),
        ("[flags]\na = {b = 1}\n", "no such value"),
        ("[flags]\na = [true]\n", "no such value"),
        ("[flags]\na = 1979-05-27\n", "no such value"),
        ('name = "\\u0007"\n[flags]\na = 1\n', "can be seen"),
        ('name = "good"\n[flags]\na = 1\n', "another file"),
    ],
)
def test_a_bad_file_is_one_line_and_the_rest_works(presets: Path, text: str, says: str) -> None:
    """It is named; it is not written over."""
    saved.save("good", {"page-size": 64})
    bad = presets / "z-bad.toml"
    bad.write_text(text)
    found, problems = saved.load_all()
    assert [p.name for p in found] == ["good"]
    assert len(problems) == 1
    assert str(bad) in problems[0]
    assert "\n" not in problems[0]
    assert re.search(says, problems[0])
    if "another file" not in says:
        with pytest.raises(saved.SavedError, match="another name"):
            saved.save("Z bad", {"page-size": 1})
    assert bad.read_text() == text


def test_two_names_of_one_file_do_not_replace_each_other(presets: Path) -> None:
    """Names differ in more than a file's name can."""
    saved.save("a b", {"page-size": 64})
    with pytest.raises(saved.SavedError, match="another name"):
        saved.save("a-b", {"page-size": 1})
    for name in ("", "   ", "x" * 41, "\x07"):
        with pytest.raises(saved.SavedError, match="1 to 40"):
            saved.save(name, {"page-size": 1})
    assert [p.edits for p in saved.load_all()[0]] == [{"page-size": 64}]


def test_one_that_this_sglang_cannot_take_says_so() -> None:
    """It is listed all the same, between stoker.toml and the recipes."""
    saved.save("mine", {"page-size": 64, "no-such-flag": 1})
    own, _ = saved.load_all()
    book = Book(FlagCatalogue(BUILT_IN.flags, version="0.5.12", source="parser"))
    listed = starts(State(), book, own)
    assert listed[0].name == "mine"
    assert listed[0].problem == "this SGLang has no no-such-flag"
    assert listed[0].edits == {}
    assert starts(State(), Book(), own)[0].edits == {"page-size": 64, "no-such-flag": 1}
