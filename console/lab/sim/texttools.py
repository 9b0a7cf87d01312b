"""The text tools beside the endpoints that generate: tokens, and what a parser finds in a text."""

from __future__ import annotations

from aiohttp import web

from console.lab.sim import bodies, flags, parsers
from console.lab.sim.config import Config
from console.lab.sim.exchange import error, read_object, reply
from console.lab.sim.refusals import (
    BrokenError,
    InvalidError,
    missing,
    no_list,
    problem,
    wrong_value,
)
from console.lab.sim.tokens import tokenizer


class TextTools:
    """Handlers of one server."""

    def __init__(self, config: Config) -> None:
        self.config = config

    async def tokenize(self, request: web.Request) -> web.Response:
        """Text, or messages through the chat template, to ids."""
        body = await read_object(request, 1525, "openai_v1_tokenize", strict=True)
        encode, prompt = tokenizer().encode, body.get("prompt")
        tokens: list[int] | list[list[int]]
        count: int | list[int]
        if (prompt is None) == (body.get("messages") is None):
            said = "Exactly one of 'prompt' or 'messages' must be provided."
            raise InvalidError(wrong_value((), said, body))
        if body.get("messages") is not None:
            bodies.check_chat(body, self.config)
            text, before, _ = bodies.chat_prompt(body, new=self.config.new)
            tokens = encode(text) + encode(before)
            count = len(tokens)
        elif isinstance(prompt, str):
            tokens = encode(prompt)
            count = len(tokens)
        elif isinstance(prompt, list):
            lists = [encode(str(one)) for one in prompt]
            tokens, count = lists, [len(ids) for ids in lists]
        else:
            kind = problem(
                "string_type", ("prompt", "str"), "Input should be a valid string", prompt
            )
            raise InvalidError(kind, no_list(("prompt", "list[str]"), prompt))
        return reply({"tokens": tokens, "count": count, "max_model_len": self.config.context})

    async def detokenize(self, request: web.Request) -> web.Response:
        """Ids to text."""
        body = await read_object(request, 1543, "openai_v1_detokenize", strict=True)
        tokens, skip = body.get("tokens"), body.get("skip_special_tokens", True)
        if not isinstance(tokens, list):
            kinds = ("list[int]", "list[list[int]]")
            raise InvalidError(*(no_list(("tokens", kind), tokens) for kind in kinds))
        try:
            if tokens and isinstance(tokens[0], list):
                texts = [tokenizer().decode(ids, skip_special=skip) for ids in tokens]
                return reply({"text": texts})
            return reply({"text": tokenizer().decode(tokens, skip_special=skip)})
        except OverflowError as exc:
            said = f"Internal server error during detokenization: {exc}"
            return error(said, 500, "InternalServerError")

    async def separate_reasoning(self, request: web.Request) -> web.Response:
        """Split thinking from answer with a named parser.

        ``qwen3`` sees thinking only where ``<think>`` stands in the text; ``qwen3-thinking``
        takes everything before ``</think>`` for it.
        """
        body = await read_object(request, 1438, "separate_reasoning_request")
        bodies.needs(body, "text", "reasoning_parser")
        parser = str(body["reasoning_parser"]).lower()
        if parser not in self._choices("reasoning_parser"):
            raise BrokenError(f"ValueError: Unsupported model type: {parser}")
        forced = parser in parsers.FORCED
        reasoning, text = parsers.separate(str(body["text"]), thinking=forced, new=self.config.new)
        return reply({"reasoning_text": reasoning, "text": text})

    async def parse_function_call(self, request: web.Request) -> web.Response:
        """Find tool calls in a text."""
        body = await read_object(request, 1416, "parse_function_call_request")
        bodies.needs(body, "text")
        tools = body.get("tools") or []
        wrong = [n for n, tool in enumerate(tools) if "function" not in tool]
        if wrong:
            raise InvalidError(*(missing(("tools", n, "function"), tools[n]) for n in wrong))
        parser = body.get("tool_call_parser")
        if parser not in self._choices("tool_call_parser"):
            raise BrokenError(f"ValueError: Unsupported tool_call_parser: {parser}")
        text, found = parsers.calls(str(body["text"]), bodies.functions(tools), parser)
        return reply(
            {
                "normal_text": text,
                "calls": [
                    {"tool_index": call.place, "name": call.name, "parameters": call.arguments}
                    for call in found
                ],
            }
        )

    def _choices(self, dest: str) -> set[str]:
        """The parsers that this release knows."""
        rows = flags.table(self.config.version)
        return {choice for row in rows if row[1] == dest for choice in row[5]} - {"auto"}
