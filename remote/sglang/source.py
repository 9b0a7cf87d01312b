"""SGLang's flags read from its source text, for where its parser cannot be run.

0.5.12 declares them by ``add_argument`` calls in ``ServerArgs.add_cli_args`` of
``srt/server_args.py``; 0.5.23 mostly by annotated fields in ``srt/arg_groups/fields/*.py``, with
choices in ``srt/arg_groups/choices.py``. Nothing is imported or run: what is not a plain value in
the text (a computed list of choices) is left open, so that nothing valid is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remote.protocol import FlagInfo, FlagKind
from remote.sglang.catalogue import Catalogue, FlagError

_CONSTANTS = (
    "parser/reasoning_parser_names.py",
    "function_call/parser_names.py",
    "arg_groups/choices.py",
    "server_args.py",
)
"""Files below ``sglang/srt`` whose module-level lists are choices elsewhere."""

_FROM_CALLS = {
    "_reasoning_parser_choices": "REASONING_PARSER_NAMES",
    "_tool_call_parser_choices": "TOOL_CALL_PARSER_NAMES",
}
_SIZE_PARSERS = ("human_readable_int",)
_JSON_PARSERS = ("json.loads", "json_list_type", "json_dict_type")


class _UnknownError(Exception):
    """Not a plain value."""


def read(packages: Path, version: str | None) -> Catalogue:
    """The flags of the SGLang below this site-packages folder. Blocking.

    Raises :class:`FlagError` where its source is not there or looks unlike both dialects.
    """
    folder = packages / "sglang" / "srt"
    trees = {name: tree for name in _CONSTANTS if (tree := _parse(folder / name)) is not None}
    main = trees.get("server_args.py")
    if main is None:
        raise FlagError(f"no readable SGLang source in {folder}")
    names: dict[str, Any] = {}
    for tree in trees.values():
        _collect(tree, names)
    found: dict[str, FlagInfo] = {}
    for path in sorted((folder / "arg_groups" / "fields").glob("*.py")):
        tree = _parse(path)
        for flag in _annotated(tree, dict(names)) if tree is not None else ():
            found.setdefault(flag.name, flag)
    for flag in _added(main, names):
        found.setdefault(flag.name, flag)
    if not found:
        raise FlagError(f"the source in {folder} declares its flags in a way not known here")
    return Catalogue(version=version, flags=list(found.values()), source="source text")


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text("utf-8", "replace"))
    except (OSError, SyntaxError, ValueError):
        return None


def _collect(tree: ast.Module, names: dict[str, Any]) -> None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                names[node.targets[0].id] = _value(node.value, names)
            except _UnknownError:
                continue


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, names) for part in parts]
        case ast.Set(elts=parts):
            return sorted((_value(part, names) for part in parts), key=str)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _value(operand, names)
            if isinstance(value, int | float):
                return -value
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _value(left, names), _value(right, names)
            if type(one) is type(other) and isinstance(one, str | list):
                return one + other
        case ast.Call(func=ast.Name(id="list" | "sorted" | "set"), args=[inner]):
            value = _value(inner, names)
            if isinstance(value, list):
                return value
        case ast.Call(func=ast.Name(id=name), args=[]) if name in _FROM_CALLS:
            return _value(ast.Name(id=_FROM_CALLS[name]), names)
        case ast.Subscript(value=inner, slice=ast.Constant(value=int(index))):
            value = _value(inner, names)
            if isinstance(value, list) and -len(value) <= index < len(value):
                return value[index]
        case ast.JoinedStr(values=parts):
            return "".join(_words(part, names) for part in parts)
    raise _UnknownError


def _words(node: ast.expr, names: dict[str, Any]) -> str:
    if isinstance(node, ast.FormattedValue):
        try:
            return str(_value(node.value, names))
        except _UnknownError:
            return "…"
    return str(_value(node, names))


def _plain(node: ast.expr | None, names: dict[str, Any], otherwise: Any = None) -> Any:
    if node is None:
        return otherwise
    try:
        return _value(node, names)
    except _UnknownError:
        return otherwise


# --- add_argument calls ---


def _added(tree: ast.Module, names: dict[str, Any]) -> Iterator[FlagInfo]:
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ServerArgs"]
    for owner in classes:
        defaults = {
            node.target.id: _plain(node.value, names)
            for node in owner.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name == "add_cli_args":
                local = dict(names)
                for node in ast.walk(method):
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                        local[node.targets[0].id] = _plain(node.value, local)
                local = {name: value for name, value in local.items() if value is not None}
                for node in ast.walk(method):
                    if isinstance(node, ast.Call) and _called(node) == "add_argument":
                        yield from _from_call(node, local, defaults)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _from_call(
    node: ast.Call, names: dict[str, Any], defaults: dict[str, Any]
) -> Iterator[FlagInfo]:
    options = [str(_plain(arg, names, "")) for arg in node.args]
    given = {word.arg: word.value for word in node.keywords if word.arg}
    default_node = given.get("default")
    if isinstance(default_node, ast.Attribute):  # default=ServerArgs.the_field
        default = defaults.get(default_node.attr)
    else:
        default = _plain(default_node, names)
    kind, switch, action = _kind(given.get("type")), False, _text(given.get("action"))
    valueless = ("store_true", "StoreTrue", "BooleanOptional", "DeprecatedAction")
    if any(word in action for word in valueless):
        kind, switch = "bool", True
    yield from _flag(
        options,
        kind,
        choices=_plain(given.get("choices"), names),
        default=False if switch and default is None else default,
        help_text=_plain(given.get("help"), names, ""),
        nargs=_plain(given.get("nargs"), names),
        action=action,
    )


def _text(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


def _kind(node: ast.expr | None) -> FlagKind:
    name = _text(node)
    if name == "int":
        return "int"
    if name == "float":
        return "float"
    if name in _SIZE_PARSERS:
        return "size"
    return "json" if name in _JSON_PARSERS else "str"


def _flag(
    options: list[str],
    kind: FlagKind,
    *,
    choices: Any,
    default: Any,
    help_text: Any,
    nargs: Any,
    action: str,
) -> Iterator[FlagInfo]:
    names = [option.removeprefix("--") for option in options if option.startswith("--")]
    if not names:
        return
    allowed = choices if isinstance(choices, list) and choices else None
    made = FlagInfo(
        name=names[0].replace("_", "-"),
        kind=kind,
        choices=allowed,
        default=default,
        help=" ".join(str(help_text).split()),
        many=nargs in ("*", "+") or (isinstance(nargs, int) and nargs > 1),
        optional=nargs == "?",
        aliases=names[1:],
        deprecated="Deprecated" in action,
    )
    yield made
    if "BooleanOptional" in action:
        yield FlagInfo(
            name=f"no-{made.name}", kind="bool", default=False, help=f"Opposite of {made.name}."
        )


# --- Annotated fields ---


def _annotated(tree: ast.Module, names: dict[str, Any]) -> Iterator[FlagInfo]:
    _collect(tree, names)
    for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield from _from_field(node.target.id, node, names)


def _from_field(field: str, node: ast.AnnAssign, names: dict[str, Any]) -> Iterator[FlagInfo]:
    match node.annotation:
        case ast.Subscript(value=ast.Name(id="A"), slice=ast.Tuple(elts=[kind_node, about, *_])):
            pass
        case _:
            return
    given: dict[str, ast.expr] = {}
    if isinstance(about, ast.Call) and _called(about) == "Arg":
        given = {word.arg: word.value for word in about.keywords if word.arg}
        help_text = _plain(given.get("help"), names, "")
    elif isinstance(about, ast.Call):
        return  # a derived value, no flag
    else:
        help_text = _plain(about, names, "")
    if _plain(given.get("no_cli"), names) is True:
        return
    kind, many, choices = _annotation(kind_node, names)
    if (parser := given.get("type_parser")) is not None:
        kind, many = _kind(parser), False
    action = _text(given.get("action"))
    if "BooleanOptional" in action or "StoreTrue" in action:
        kind = "bool"
    nargs = _plain(given.get("nargs"), names)
    if many and nargs is None:
        nargs = "+"
    aliases = _plain(given.get("aliases"), names, [])
    yield from _flag(
        [
            str(_plain(given.get("cli_name"), names, "--" + field.replace("_", "-"))),
            *(str(alias) for alias in aliases),
        ],
        kind,
        choices=_plain(given.get("choices"), names) or choices,
        default=_plain(node.value, names),
        help_text=help_text,
        nargs=nargs,
        action=action,
    )


def _annotation(node: ast.expr, names: dict[str, Any]) -> tuple[FlagKind, bool, Any]:
    """Kind, whether several, and choices of a type annotation."""
    match node:
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _annotation(inner, names)
        case ast.BinOp(left=inner, op=ast.BitOr()):
            return _annotation(inner, names)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            choices = _plain(inner, names)
            choices = choices if isinstance(choices, list) else [choices]
            return ("int" if isinstance(choices[0], int) else "str"), False, choices
        case ast.Subscript(value=ast.Name(id="List" | "list"), slice=inner):
            kind, _, choices = _annotation(inner, names)
            return kind, True, choices
        case ast.Name(id="bool"):
            return "bool", False, None
    return _kind(node), False, None
