"""What the columns of a row mean: declared mappings, the known ones and a recipe's own.

A new dataset is one :class:`Mapping`, a few names in the recipe. The known datasets are
nothing else; they are recognised by their columns.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec
from msgspec import Struct

from remote.prepare import shapes
from remote.prepare.rows import Draft, Drop, Notes


class Mapping(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where in a row the parts of a request lie. Paths are dotted: ``label.names``, ``turns.0``.

    Either ``messages`` (a list of turns) or ``prompt``/``template`` (one question) is needed;
    ``form`` says that rows are whole request bodies or agent trajectories instead.
    """

    form: Literal["columns", "body", "trajectory"] = "columns"
    messages: str = ""
    role: str = ""
    """Key of the role in a turn; by default ``role`` or ``from``."""
    content: str = ""
    """Key of the text in a turn; by default ``content`` or ``value``."""
    prompt: str = ""
    template: str = ""
    """Text with ``{path}`` in it, e.g. ``"{instruction}\\n\\n{input}"``."""
    system: str = ""
    """Column with a system text; a system turn among the messages wins over it."""
    tools: str = ""
    schema: str = ""
    """Column with a JSON schema that the answer is to follow."""
    id: str = ""
    labels: str = ""
    """Column with topic labels (a text or a list of texts)."""
    roles: dict[str, str] = {}
    """Role names of this dataset beyond the usual ones → system, user, assistant, tool, call."""
    skip: dict[str, list[str]] = {}
    """Path → patterns (``*`` and ``?``); a row whose value matches one is dropped."""
    strip_system: list[str] = []
    """Regular expressions of what to delete from a system text whose tools were lifted out."""
    domain: str = ""
    sampling: bool = False
    """Whether captured bodies keep their ``temperature`` and ``top_p``."""


class Adapter(Struct, frozen=True):
    """A known dataset: its mapping, and the columns it is recognised by."""

    name: str
    columns: frozenset[str]
    mapping: Mapping
    turn_keys: frozenset[str] = frozenset()
    """Keys the first turn must have, where the columns alone do not tell."""


_FLAGGED = {
    "toxic": ["true"],
    "openai_moderation.*.flagged": ["true"],
}


def _known(
    name: str, columns: str, mapping: Mapping | None = None, turn_keys: str = "", **fields: Any
) -> Adapter:
    return Adapter(
        name,
        frozenset(columns.split()),
        mapping or Mapping(**fields),
        frozenset(turn_keys.split()),
    )


# The order matters: the first whose columns are all there is taken, so the more particular
# ones stand first. Columns as on the datasets' pages on the hub.
ADAPTERS: tuple[Adapter, ...] = (
    # Captured HTTP traffic: an envelope around a body, or the body itself.
    _known("http_envelope", "method body", form="body"),
    _known("http_body", "model messages", form="body"),
    _known("http_body_responses", "model input", form="body"),
    _known("http_envelope_url", "method url", form="body"),
    _known("wildclaw_trajectory", "task_id trajectory", form="trajectory", id="task_id"),
    # Function calling.
    _known(
        "xlam",
        "query answers tools",
        prompt="query",
        tools="tools",
        id="id",
        domain="tools",
    ),
    _known("bfcl", "question function", messages="question.0", tools="function", id="id"),
    _known(
        "hermes_json_mode",
        "conversations schema",
        messages="conversations",
        schema="schema",
        id="id",
    ),
    _known(
        "hermes",
        "conversations tools",
        messages="conversations",
        tools="tools",
        id="id",
    ),
    # One question a row.
    _known(
        "webinstruct_sub",
        "orig_question question answer",
        prompt="question",
        id="index",
    ),
    _known(
        "metamathqa",
        "type query original_question",
        prompt="query",
        domain="math",
    ),
    _known("codefeedback", "query answer resource lang", prompt="query", domain="code"),
    _known("humaneval", "task_id prompt entry_point", prompt="prompt", id="task_id", domain="code"),
    # Conversations.
    _known(
        "magpie",
        "uuid instruction conversations",
        messages="conversations",
        id="uuid",
        labels="task_category",
    ),
    _known(
        "openhermes",
        "conversations system_prompt skipPromptFormatting",
        messages="conversations",
        system="system_prompt",
        id="id",
        labels="topic",
    ),
    _known(
        "infinity_instruct",
        "conversations label langdetect",
        messages="conversations",
        id="id",
        labels="label.cate_ability_en",
    ),
    _known(
        "infinity_instruct_plain",
        "conversations label",
        messages="conversations",
        id="id",
        labels="label.cate_ability_en",
    ),
    _known(
        "agentinstruct",
        "conversations",
        messages="conversations",
        id="id",
        domain="agent",
        turn_keys="loss",
    ),
    _known(
        "agent_data_collection",
        "conversations system",
        messages="conversations",
        system="system",
        id="id",
        domain="agent",
    ),
    _known("sharegpt", "conversations", messages="conversations", id="id"),
    _known(
        "wildchat",
        "conversation conversation_hash",
        messages="conversation",
        id="conversation_hash",
        skip=_FLAGGED,
    ),
    _known(
        "lmsys_chat",
        "conversation conversation_id",
        messages="conversation",
        id="conversation_id",
        skip=_FLAGGED,
    ),
    _known("ultrachat", "prompt prompt_id messages", messages="messages", id="prompt_id"),
    _known(
        "agent_training",
        "messages category language",
        messages="messages",
        id="id",
        domain="agent",
    ),
    _known(
        "tulu",
        "messages source id",
        messages="messages",
        id="id",
        skip={"source": ["*hard_coded*", "*hardcoded*"]},
    ),
    _known("chat", "messages", messages="messages", tools="tools", id="id"),
    # Plain shapes that many sets have; last, since their columns are common.
    _known("alpaca", "instruction input", template="{instruction}\n\n{input}", id="id"),
    _known("instruction", "instruction", prompt="instruction", id="id"),
    _known("question", "question", prompt="question", id="id"),
    _known("query", "query", prompt="query", id="id"),
    _known("prompt", "prompt", prompt="prompt", id="id"),
)

BY_NAME = {adapter.name: adapter for adapter in ADAPTERS}


def detect(row: dict[str, Any]) -> Adapter | None:
    """The first known adapter whose columns the row has."""
    keys = row.keys()
    for adapter in ADAPTERS:
        if adapter.columns <= keys:
            if adapter.turn_keys:
                turns = row.get(adapter.mapping.messages)
                first = turns[0] if isinstance(turns, list) and turns else None
                if not (isinstance(first, dict) and adapter.turn_keys <= first.keys()):
                    continue
            return adapter
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean X?)`` where something known is near, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def reach(row: Any, path: str) -> Any:
    """The value at a dotted path, None where there is none; ``*`` gives the list over all items."""
    value = row
    steps = path.split(".")
    for n, step in enumerate(steps):
        if step == "*":
            if not isinstance(value, list):
                return None
            rest = ".".join(steps[n + 1 :])
            return [reach(item, rest) for item in value] if rest else value
        if isinstance(value, str) and value[:1] in "{[":
            try:
                value = msgspec.json.decode(value)
            except msgspec.DecodeError:
                return None
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal():
            value = value[int(step)] if int(step) < len(value) else None
        else:
            return None
    return value


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value if isinstance(value, str) else str(value)]


def _fill(template: str, row: dict[str, Any]) -> str:
    parts: list[str] = []
    rest = template
    while True:
        before, opened, rest = rest.partition("{")
        parts.append(before)
        if not opened:
            break
        path, closed, rest = rest.partition("}")
        if not closed:
            parts.append("{" + path)
            break
        parts.extend(_texts(reach(row, path))[:1])
    return "".join(parts).strip()


def apply(row: dict[str, Any], mapping: Mapping, notes: Notes) -> Draft:
    """The row in common form.

    Raises:
        Drop: the row is of a kind that is not wanted, or not what the mapping says.
    """
    for path, patterns in mapping.skip.items():
        for text in _texts(reach(row, path)):
            if any(fnmatchcase(text, pattern) for pattern in patterns):
                raise Drop(f"skipped:{path.replace('.*', '')}", text)
    if mapping.form == "body":
        return shapes.body(row, notes, sampling=mapping.sampling)
    if mapping.form == "trajectory":
        draft = shapes.trajectory(row)
    elif mapping.messages:
        turns = reach(row, mapping.messages)
        if isinstance(turns, str):
            try:
                turns = msgspec.json.decode(turns)
            except msgspec.DecodeError:
                turns = None
        if not isinstance(turns, list):
            raise Drop("no_messages", f"column {mapping.messages}")
        draft = Draft(turns=turns, role_key=mapping.role, content_key=mapping.content)
    else:
        text = _fill(mapping.template, row) if mapping.template else reach(row, mapping.prompt)
        draft = Draft(turns=[{"role": "user", "content": text}])
    if mapping.tools:
        draft.tools = reach(row, mapping.tools)
    if mapping.system:
        system = reach(row, mapping.system)
        draft.system = system if isinstance(system, str) else ""
    if mapping.schema:
        draft.schema = reach(row, mapping.schema)
    if mapping.id:
        own = reach(row, mapping.id)
        draft.id = "" if own is None or isinstance(own, (dict, list)) else str(own)
    if mapping.labels:
        draft.labels = _texts(reach(row, mapping.labels))
    return draft
