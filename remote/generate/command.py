"""The command line of the run, parsed; :mod:`remote.runline` builds it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from remote.arguments import Parser
from remote.generate import sampling
from remote.generate.outcomes import KEPT
from remote.generate.ranges import out_of_range
from remote.generate.settings import Settings, UsageError
from remote.protocol import ANSWERED, POLICY, S3Spec

KEY_VARIABLES = ("STOKER_API_KEY", "OPENAI_API_KEY")
"""Where the servers' API key is looked for, in the credentials file and the environment."""


def parser() -> Parser:
    """Flags of ``python -m remote.generate``."""
    p = Parser(
        prog="python -m remote.generate",
        description="Generate completions for a file of prompts on OpenAI-compatible servers. "
        "SIGTERM drains; the same command again resumes. Exit status: 0 every prompt done; 1 "
        "finished, but some given up, set aside or not uploaded; 2 wrong usage; 130 stopped, "
        "drained or failed with prompts left.",
    )
    add = p.add_argument
    add("--prompts", type=Path, required=True, metavar="FILE", help="JSONL, one prompt a line")
    add("--output", type=Path, required=True, metavar="DIR", help="run directory")
    add("--server", action="append", default=[], metavar="URL", help="may be repeated")
    add("--concurrency", default="auto", metavar="N|auto", help="requests per server")
    add("--max-tokens", type=int, default=4096, metavar="N")
    add("--no-thinking", action="store_true", help="ask chat templates for no reasoning")
    add("--temperature", type=float, metavar="X")
    add("--request", default="{}", metavar="JSON", help="further fields of every request")
    add("--model", default="", help="model name to ask for (default: what the servers serve)")
    add("--endpoint", default="chat", choices=("chat", "generate"))
    add("--retries", type=int, default=3, metavar="N", help="after a failed attempt")
    add(
        "--policy",
        action="append",
        default=[],
        metavar="OUTCOME=WHAT",
        help="what to do with an outcome: keep, set-aside or retry:N (another seed, up to N "
        "times); e.g. looped=retry:2. Default: ok and length are kept, others set aside",
    )
    add("--hedge", action="store_true", help="at the end, send stragglers to a second server")
    add("--s3", default="", metavar="BUCKET/PREFIX", help="upload sealed batches")
    add("--s3-endpoint", default="", metavar="URL", help="an S3 service other than AWS")
    add("--delete-uploaded", action="store_true", help="delete batches here once safely in S3")
    add("--credentials", type=Path, metavar="FILE", help="KEY=VALUE lines, mode 0600")
    add("--extend", action="store_true", help="the prompts file has grown: do the new ones too")
    add("--accept-params", action="store_true", help="go on with other request parameters")
    add("--agent", type=Path, metavar="SOCKET", help="the agent whose run this is")
    add("--patience", type=float, default=180.0, metavar="S", help=argparse.SUPPRESS)
    return p


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Checked settings.

    :raises UsageError: an argument that cannot be meant.
    """
    concurrency: int | str = arguments.concurrency
    if concurrency != "auto":
        try:
            concurrency = int(concurrency)
        except ValueError:
            raise UsageError(f"--concurrency {concurrency}: a number or auto") from None
        if concurrency < 1:
            raise UsageError("--concurrency: at least 1")
    if arguments.max_tokens < 1:
        raise UsageError("--max-tokens: at least 1")
    if arguments.retries < 0:
        raise UsageError("--retries: 0 or more")
    if arguments.temperature is not None and not 0 <= arguments.temperature < math.inf:
        raise UsageError(f"--temperature {arguments.temperature}: a number from 0 on")
    try:
        request = msgspec.json.decode(arguments.request)
    except msgspec.DecodeError:
        request = None
    if not isinstance(request, dict):
        raise UsageError("--request: a JSON object of request fields")
    if wrong := out_of_range(request):
        raise UsageError(f"--request: {wrong}")
    if arguments.endpoint == "generate":
        try:
            sampling.check_request(request)
        except sampling.SamplingError as error:
            raise UsageError(f"--request: {error}") from None
    keep, again = read_policy(arguments.policy)
    bucket, _, prefix = arguments.s3.removeprefix("s3://").partition("/")
    if arguments.s3 and not bucket:
        raise UsageError(f"--s3 {arguments.s3}: BUCKET/PREFIX")
    if arguments.delete_uploaded and not bucket:
        raise UsageError("--delete-uploaded: nothing is uploaded without --s3 BUCKET/PREFIX")
    return Settings(
        prompts=arguments.prompts,
        output=arguments.output,
        servers=tuple(dict.fromkeys(server_url(text) for text in arguments.server)),
        concurrency=concurrency,  # type: ignore[arg-type]
        max_tokens=arguments.max_tokens,
        thinking=not arguments.no_thinking,
        temperature=arguments.temperature,
        request=request,
        model=arguments.model,
        endpoint=arguments.endpoint,
        retries=arguments.retries,
        retry_outcomes=again,
        keep=keep,
        hedge=arguments.hedge,
        delete_uploaded=arguments.delete_uploaded,
        extend=arguments.extend,
        accept_params=arguments.accept_params,
        s3=S3Spec(bucket, prefix, arguments.s3_endpoint),
        agent=arguments.agent,
        credentials=arguments.credentials,
        patience=arguments.patience,
    )


def read_policy(words: list[str]) -> tuple[frozenset[str], dict[str, int]]:
    """Outcomes to keep, and how often each is tried again with another seed.

    :raises UsageError: no such outcome or action.
    """
    keep, again = set(KEPT), {}
    for word in (part for text in words for part in text.split(",")):
        outcome, _, action = word.partition("=")
        action = action.replace("_", "-")
        if outcome not in ANSWERED:
            raise UsageError(f"--policy {word}: the outcomes are {', '.join(ANSWERED)}")
        if not POLICY.fullmatch(action):
            raise UsageError(f"--policy {word}: keep, set-aside or retry:N (N from 1 to 99)")
        if action == "keep":
            keep.add(outcome)
        elif action == "set-aside":
            keep.discard(outcome)
        else:
            again[outcome] = int(action.removeprefix("retry:"))
    return frozenset(keep), again


def server_url(text: str) -> str:
    """A server's base URL; a trailing ``/v1`` and slashes are dropped.

    :raises UsageError: it is no HTTP URL.
    """
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"--server {text}: not a URL such as http://127.0.0.1:30000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def read_credentials(path: Path | None) -> dict[str, str]:
    """``KEY=VALUE`` lines (``export`` in front and quotes around are fine).

    :raises UsageError: the file cannot be read.
    """
    if path is None:
        return {}
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"--credentials {path}: {error.strerror}") from None
    found = {}
    for raw in text.splitlines():
        name, separator, value = raw.strip().removeprefix("export ").partition("=")
        if separator and name.strip().isidentifier():
            found[name.strip()] = value.strip().strip("\"'")
    return found


def api_headers(credentials: Mapping[str, str]) -> dict[str, str]:
    """The Authorization header, where a key is set."""
    for name in KEY_VARIABLES:
        if key := credentials.get(name):
            return {"authorization": f"Bearer {key}"}
    return {}


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit status."""
    chosen = parser().parse_args(arguments)
    try:
        settings = settings_of(chosen)
        if not settings.servers and settings.agent is None:
            raise UsageError("no --server given: where should the prompts go?")
        return _run(settings)
    except UsageError as error:
        print(f"remote.generate: {error}", file=sys.stderr)
        return 2


def _run(settings: Settings) -> int:
    from remote.generate.limits import check_open_files
    from remote.generate.opening import open_run
    from remote.generate.run import Run
    from remote.generate.server import MARGIN, UNKNOWN
    from remote.generate.show import let_go

    def credentials() -> dict[str, str]:
        return {**os.environ, **read_credentials(settings.credentials)}

    headers = api_headers(credentials())
    each = UNKNOWN + MARGIN if settings.concurrency == "auto" else settings.concurrency
    check_open_files(each * len(settings.servers))
    opened = open_run(settings)
    # What is here now stays: the collector need not walk it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)

    async def life() -> int:
        return await Run(settings, opened, headers, credentials).main()

    try:
        return asyncio.run(life())
    finally:
        let_go()
