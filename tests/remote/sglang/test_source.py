"""The catalogue out of SGLang's source text, in the manner of both dialects, and by its parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from remote.sglang import source
from remote.sglang.catalogue import Catalogue, FlagError, check, load

OLD = """
import argparse

BACKENDS = ["triton", "flashinfer"]
SAMPLING = {"pytorch", "flashinfer"}
MORE = BACKENDS + ["fa3"]
COMPUTED = compute()


class ServerArgs:
    mem_fraction_static: float | None = None
    tp_size: int = 1
    log_level: str = "info"

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        parsers = list(Registry.known)
        parser.add_argument("--mem-fraction-static", type=float,
                            default=ServerArgs.mem_fraction_static, help="Fraction "
                            "of the memory")
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int,
                            default=ServerArgs.tp_size)
        parser.add_argument("--context-length", type=human_readable_int)
        parser.add_argument("--backend", choices=MORE, help=f"One of {MORE}, {COMPUTED}.")
        parser.add_argument("--sampling", choices=SAMPLING)
        parser.add_argument("--parser", choices=["auto"] + parsers)
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--bs", type=int, nargs="+")
        parser.add_argument("--config-json", type=json.loads)
        parser.add_argument("--levels", type=int, choices=[0, 1], default=-1)
        parser.add_argument("--strict", action=argparse.BooleanOptionalAction)
        parser.add_argument("--gone", action=DeprecatedAction, help="Deprecated")
        parser.add_argument("--maybe", nargs="?")
        parser.add_argument("-x")
"""

NEW = {
    "server_args.py": """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        choices = _reasoning_parser_choices()
        parser.add_argument("--reasoning-parser", type=str, choices=["auto"] + choices)
        parser.add_argument("--disable-cuda-graph", action=DeprecatedStoreTrueAction)
""",
    "parser/reasoning_parser_names.py": 'REASONING_PARSER_NAMES = ["qwen3", "kimi"]\n',
    "arg_groups/choices.py": 'POLICIES = ["lru", "lfu"]\n',
    "arg_groups/fields/memory.py": """
class Memory(msgspec.Struct):
    _NS_PATH = "memory"
    policy: A[str, Arg(help="Which.", choices=POLICIES, resolvable=True)] = "lru"
    _inner: A[bool, Arg(no_cli=True)] = False
    disable_radix_cache: A[bool, "Off."] = False
    ratio: A[Optional[float], "Share."] = 0.9
    sizes: A[Optional[List[int]], Arg(help="Several.", nargs="*")] = None
    mode: A[Literal["serial", "overlap"], "How."] = "serial"
    total: A[Optional[int], Arg(help="T", type_parser=human_readable_int)] = None
    tp_size: A[int, Arg(cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
    both: A[Optional[bool], Arg(action=argparse.BooleanOptionalAction)] = None
    computed: A[int, Derived(fn="x.y")]
    plain: int = 3
""",
}


def lay_out(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "sglang" / "srt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_older_manner(tmp_path: Path) -> None:
    found = source.read(lay_out(tmp_path, {"server_args.py": OLD}), "0.5.12")
    flags = {flag.name: flag for flag in found.flags}
    assert (found.version, found.source) == ("0.5.12", "source text")
    assert "x" not in flags
    memory = flags["mem-fraction-static"]
    assert (memory.kind, memory.default, memory.help) == ("float", None, "Fraction of the memory")
    assert flags["tensor-parallel-size"].aliases == ["tp-size"]
    assert flags["tensor-parallel-size"].default == 1
    assert flags["context-length"].kind == "size"
    assert flags["backend"].choices == ["triton", "flashinfer", "fa3"]
    assert flags["backend"].help == "One of ['triton', 'flashinfer', 'fa3'], …."
    assert flags["sampling"].choices == ["flashinfer", "pytorch"]
    assert flags["parser"].choices is None
    assert (flags["enable-metrics"].kind, flags["enable-metrics"].default) == ("bool", False)
    assert (flags["bs"].kind, flags["bs"].many) == ("int", True)
    assert flags["config-json"].kind == "json"
    assert flags["levels"].default == -1
    assert flags["no-strict"].kind == flags["strict"].kind == "bool"
    assert (flags["gone"].kind, flags["gone"].deprecated) == ("bool", True)
    assert flags["maybe"].optional


def test_the_newer_manner(tmp_path: Path) -> None:
    found = source.read(lay_out(tmp_path, NEW), "0.5.23")
    flags = {flag.name: flag for flag in found.flags}
    assert set(flags) == {
        "policy",
        "disable-radix-cache",
        "ratio",
        "sizes",
        "mode",
        "total",
        "tensor-parallel-size",
        "both",
        "no-both",
        "reasoning-parser",
        "disable-cuda-graph",
    }
    assert (flags["policy"].choices, flags["policy"].default) == (["lru", "lfu"], "lru")
    assert (flags["ratio"].kind, flags["ratio"].default) == ("float", 0.9)
    assert (flags["sizes"].kind, flags["sizes"].many) == ("int", True)
    assert flags["mode"].choices == ["serial", "overlap"]
    assert flags["total"].kind == "size"
    assert flags["tensor-parallel-size"].aliases == ["tp-size"]
    assert flags["reasoning-parser"].choices == ["auto", "qwen3", "kimi"]
    assert flags["disable-cuda-graph"].deprecated


def test_source_text_may_lack_a_flag_but_not_a_type(tmp_path: Path) -> None:
    found = source.read(lay_out(tmp_path, NEW), "0.5.23")
    assert check(found, {"tp_size": "2", "unheard-of": 1}) == {"tp-size": 2, "unheard-of": 1}
    with pytest.raises(FlagError, match="takes a number"):
        check(found, {"ratio": "x"})


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"server_args.py": "def ("},
        {"server_args.py": "class ServerArgs:\n    pass\n"},
        {"server_args.py": "\x00"},
    ],
)
def test_unknown_sources(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(FlagError) as error:
        source.read(lay_out(tmp_path, files), None)
    assert "\n" not in str(error.value)


def test_the_parser_itself(tmp_path: Path) -> None:
    """The script runs in the servers' Python and agrees with what the source says."""
    noisy = "print('noise on stdout')\nimport json\n\n"
    helpers = (
        "class Registry:\n    known = ['qwen3']\n\n\ndef compute():\n    return 1\n\n\n"
        "def human_readable_int(x):\n    return int(x)\n\n\n"
        "class DeprecatedAction(argparse.Action):\n"
        "    def __init__(self, option_strings, dest, **kw):\n"
        "        super().__init__(option_strings, dest, nargs=0, **kw)\n"
    )
    text = noisy + OLD.replace("BACKENDS =", helpers + "\n\nBACKENDS =", 1)
    folder = lay_out(tmp_path, {"server_args.py": text})
    (folder / "sglang" / "__init__.py").touch()
    (folder / "sglang" / "srt" / "__init__.py").touch()
    script = Path(source.__file__).with_name("introspect.py").read_text()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, check=True, text=True
    )
    asked: Catalogue = load(done.stdout.strip().rpartition("\n")[2].encode())
    assert asked.source == "parser"
    read = {f.name: f for f in source.read(folder, None).flags}
    for flag in asked.flags:
        other = read.pop(flag.name)
        assert (flag.kind, flag.many, flag.optional, flag.aliases, flag.deprecated) == (
            other.kind,
            other.many,
            other.optional,
            other.aliases,
            other.deprecated,
        ), flag.name
        if other.choices is not None:
            assert flag.choices == other.choices
    assert not read
    assert json.loads(done.stdout.strip().splitlines()[-1])["version"] is None
