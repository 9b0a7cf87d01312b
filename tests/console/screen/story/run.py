"""The run's own records: its batch files, its mix of sources, its answers."""

from __future__ import annotations

from remote.protocol import Answer, Answers, Batches, BatchFile, Mix, SourceMix

SOURCES = (
    ("infinity-instruct", 98_420, 0.46, 2_650),
    ("webinstruct-sub", 39_870, 0.19, 2_900),
    ("codefeedback", 29_000, 0.23, 2_500),
    ("metamathqa", 23_968, 0.113, 1_800),
    ("hermes", 1_199, 0.005, 900),
    ("agent-training", 553, 0.002, 3_800),
)
"""Name, planned prompts, share of what is done, output tokens expected of one."""


def batches(done: int) -> Batches:
    """The files of the run: sealed ones, the newest of them not uploaded yet, and one open;
    nine thousand records were lost, as the Run screen has to say."""
    last = done // 500 + 1
    files = [
        BatchFile(
            f"completions_{n:06d}.jsonl" + (".open" if n == last else ""),
            "open" if n == last else "sealed" if n == last - 1 else "uploaded",
            done % 500 if n == last else 500,
            (done % 500 if n == last else 500) * 13_000,
            "" if n == last else f"2026-12-01T{n % 24:02d}:15:00.000Z",
        )
        for n in range(last, 0, -1)
    ]
    return Batches(last, done - 9_000, done * 13_000, last - 2, done - 9_000, files)


def mix(total_done: float) -> Mix:
    """Six sources; the code one is ahead of its share."""
    rows = []
    ended = {"ok": 0.93, "length": 0.07}
    for number, (name, planned, weight, tokens) in enumerate(SOURCES):
        done = int(total_done * weight)
        outcomes = {kind: int(done * share) for kind, share in ended.items()}
        failed = 12 if number == 0 else 0
        if failed:
            outcomes |= {"rejected": 9, "failed": 3, "looped": 8}
        rows.append(
            SourceMix(
                name, planned, planned * 410, planned * tokens, done, done * 410,
                done * (tokens + 90), outcomes, failed, 8 if failed else 0,
            )
        )  # fmt: skip
    return Mix(rows, "expansion_prompts.manifest.json")


def answers(kind: str, limit: int, grep: str) -> Answers:
    """The newest forty, or those that failed; with text that wants to be markup and control."""
    found = [
        Answer(
            9_870 - n,
            "rejected" if kind == "failed" else "length" if n % 7 == 3 else "ok",
            SOURCES[n % len(SOURCES)][0],
            "user: What is [bold]7[/] times 6?",
            "Seven sixes.",
            f"42, n {n} \x1b[2J",
            prompt_tokens=12,
            completion_tokens=9,
            server="http://127.0.0.1:30000",
            reason="too long" if kind == "failed" else "",
        )
        for n in range(40)
    ]
    return Answers([a for a in found if grep in a.content][:limit])
