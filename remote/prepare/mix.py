"""How many of each source, and which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remote.prepare.recipe import Recipe, Unit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def largest_remainder(total: int, shares: list[float]) -> list[int]:
    """``total`` in whole parts proportional to ``shares``, summing to it exactly.

    What rounding down leaves goes to the largest remainders (Hamilton's method); of equal
    ones the earlier wins.
    """
    whole = sum(shares)
    if whole <= 0:
        return [0] * len(shares)
    exact = [total * share / whole for share in shares]
    parts = [int(value) for value in exact]
    order = sorted(range(len(shares)), key=lambda n: (parts[n] - exact[n], n))
    for n in order[: total - sum(parts)]:
        parts[n] += 1
    return parts


def quotas(recipe: Recipe) -> list[int | None]:
    """What each source is to give, in the mix's unit; None: all it has.

    Shares divide what ``mix.total`` leaves after the fixed quotas.
    """
    found: list[int | None] = [source.quota for source in recipe.sources]
    shared = [n for n, source in enumerate(recipe.sources) if source.share is not None]
    if shared and recipe.mix.total is not None:
        left = recipe.mix.total - sum(q for q in found if q is not None)
        parts = largest_remainder(max(0, left), [recipe.sources[n].share or 0.0 for n in shared])
        for n, part in zip(shared, parts, strict=True):
            found[n] = part
    return found


def amounts(records: NDArray[Any], which: NDArray[np.int64], unit: Unit) -> NDArray[np.int64]:
    """What each of these prompts counts for in the unit of the quotas."""
    import numpy as np

    if unit == "prompts":
        return np.ones(len(which), dtype=np.int64)
    column = records["tokens" if unit == "prompt_tokens" else "expected"]
    return column[which].astype(np.int64)


def choose(
    records: NDArray[Any], alive: NDArray[np.int64], quota: int | None, unit: Unit
) -> NDArray[np.int64]:
    """Of the surviving prompts of one source, those within the quota, lowest rank first.

    Token quotas take the longest run of ranks that stays within them: none is skipped for a
    smaller one, so that a larger quota has all of these and more.
    """
    import numpy as np

    # Column by column: whole records of all prompts would be the peak of memory.
    key, rank = records["key"], records["rank"]
    order = alive[np.lexsort((key[alive, 1], key[alive, 0], rank[alive]))]
    if quota is None:
        return order
    total = np.cumsum(amounts(records, order, unit))
    return order[: int(np.searchsorted(total, quota, side="right"))]
