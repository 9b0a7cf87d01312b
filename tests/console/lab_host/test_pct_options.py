"""Option parsing of ``pct`` against Perl's own Getopt::Long."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.lab import pct

PERL = r"""
use strict; use warnings; use Getopt::Long qw(GetOptionsFromArray);
Getopt::Long::Configure('prefix_pattern=(--|-)');
sub text {
    my $s = shift;
    return '"' . join('', map { sprintf('\\u%04x', ord) } split(//, $s)) . '"';
}
sub list { return '[' . join(',', map { text($_) } @_) . ']' }
while (my $case = <STDIN>) {
    chomp $case;
    my @args = map { pack('H*', substr($_, 1)) } split(/ /, $case);
    my (%opts, @warn);
    local $SIG{__WARN__} = sub { my $w = shift; chomp $w; push @warn, $w };
    my $ok = GetOptionsFromArray(\@args, \%opts, 'vmid=s', 'keep-env:s', 'extra-args=s@');
    my @pairs = map { text($_) . ':' . (ref $opts{$_} ? list(@{$opts{$_}}) : text($opts{$_})) }
        sort keys %opts;
    print '{"warn":' . list(@warn) . ',"opts":{' . join(',', @pairs) . '},"rest":'
        . list(@args) . "}\n";
}
"""

WORDS = [
    *("--", "-", "", "x", "200", "sh", "-c", "-e", "-ex", "--e", "--extra-args", "--extra-args=a"),
    *("-k", "--keep", "--keep-env", "--keep-env=0", "--keep-env=", "-keep-env=1", "--KEEP-ENV"),
    *("-v", "--vmid", "--vmid=7", "-vmid", "--vmid=", "---", "--=x", "-=", "--nothing", "-C"),
]


def by_perl(cases: list[list[str]]) -> list[dict[str, Any]]:
    """What Getopt::Long makes of each."""
    lines = "".join(" ".join("x" + word.encode().hex() for word in case) + "\n" for case in cases)
    command = ["perl", "-e", PERL]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def by_us(case: list[str]) -> dict[str, Any]:
    """What the project's parser makes of it."""
    try:
        options, rest = pct.getopt(case, pct.OPTIONS["exec"])
    except pct.Die as error:
        return {"warn": str(error).split("\n")[:-1]}
    return {"warn": [], "opts": options, "rest": rest}


@pytest.mark.skipif(not shutil.which("perl"), reason="needs perl")
@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=7), min_size=40, max_size=40))
def test_as_getopt_long(cases: list[list[str]]) -> None:
    """Values, what is left over, and the complaints in their order."""
    for case, theirs in zip(cases, by_perl(cases), strict=True):
        if theirs["warn"]:
            theirs = {"warn": theirs["warn"]}
        assert by_us(case) == theirs, case


@pytest.mark.parametrize(
    ("args", "extra"),
    [
        (["200", "--", "sh", "-c", "x"], ["sh", "-c", "x"]),
        (["200", "--", "a", "--", "b"], ["a", "--", "b"]),
        (["200", "--keep-env=0", "--", "env"], ["env"]),
        (["200", "uname"], ["uname"]),
    ],
)
def test_exec(args: list[str], extra: list[str]) -> None:
    """What is run inside."""
    options, rest = pct._parse("exec", args)
    assert (options["vmid"], rest) == ("200", extra)


def test_undecodable_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments go through the host's locale: keep them ASCII."""
    monkeypatch.setenv("LC_ALL", "C")
    assert pct.locale_decoded("é") == "\ufffd\ufffd"
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert pct.locale_decoded("é") == "é"
    assert pct.locale_decoded("\udcff") == "\ufffd"
