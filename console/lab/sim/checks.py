"""What a request must be for the scheduler to get it, in the server's words."""

from __future__ import annotations

from typing import Any

from console.lab.sim.refusals import RefusedError


def refuse(size: int, most: int | None, values: dict[str, Any], context: int, pool: int) -> None:
    """Raise :class:`RefusedError` for a prompt or sampling parameters that cannot be served.

    ``size`` tokens go in and at most ``most`` come out; ``context`` is the model's, ``pool`` the
    KV cache's size in tokens.
    """
    if size >= context:
        raise RefusedError(
            f"The input ({size} tokens) is longer than the model's context length "
            f"({context} tokens)."
        )
    if most is not None and most + size > context:
        raise RefusedError(
            "Requested token count exceeds the model's maximum context length "
            f"of {context} tokens. You requested a total of {most + size} "
            f"tokens: {size} tokens from the input messages and {most} tokens "
            "for the completion. Please reduce the number of tokens in the input messages "
            "or the completion to fit within the limit."
        )
    problem = out_of_range(values, most)
    if problem:
        raise RefusedError(problem)
    longest = min(context - 1, pool - 1) - 5
    if size >= longest:
        raise RefusedError(
            f"Input length ({size} tokens) exceeds the maximum allowed length ({longest} "
            "tokens). Use a shorter input or enable --allow-auto-truncate."
        )


def out_of_range(values: dict[str, Any], most: int | None) -> str:
    """What the sampling parameters violate, in the server's words."""

    def number(name: str, default: float) -> float:
        value = values.get(name)
        return value if isinstance(value, int | float) else default

    temperature, top_p, min_p = number("temperature", 1), number("top_p", 1), number("min_p", 0)
    top_k = values.get("top_k")
    if temperature < 0:
        return f"temperature must be non-negative, got {temperature}."
    if not 0 < top_p <= 1:
        return f"top_p must be in (0, 1], got {top_p}."
    if not 0 <= min_p <= 1:
        return f"min_p must be in [0, 1], got {min_p}."
    if isinstance(top_k, int) and top_k != -1 and top_k < 1:
        return f"top_k must be -1 (disable) or at least 1, got {top_k}."
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2 <= number(name, 0) <= 2:
            return f"{name} must be in [-2, 2], got {number(name, 0)}."
    if not 0 < number("repetition_penalty", 1) <= 2:
        got = number("repetition_penalty", 1)
        return f"repetition_penalty must be in (0, 2] (1.0 = no penalty), got {got}."
    if most is not None and most < 0:
        return f"max_new_tokens must be at least 0, got {most}."
    least = number("min_new_tokens", number("min_tokens", 0))
    if most is not None and not 0 <= least <= most:
        return f"min_new_tokens must be in [0, max_new_tokens({most})], got {least}."
    return ""
