"""Duplicates within and across sources: exact, normalised, near.

The order in which prompts are judged is the order of their rights: by priority, then (exact
and normalised) by place, or (near) by rank. Who survives does not depend on quotas, so a
larger quota later keeps every earlier pick.

Near duplicates are found by MinHash signatures in bands (Leskovec, Rajaraman, Ullman, "Mining
of Massive Datasets", chapter 3). The signatures stay on disk; one band at a time is sorted in
memory, so that the state is some 190 bytes a prompt, keys and ranks of the choice included.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote.prepare.recipe import Dedup
from remote.prepare.spool import PERMUTATIONS, iter_signatures

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEPT, EXACT, NORMALISED, NEAR = 0, 1, 2, 3
CAUSES = {
    EXACT: "duplicate:exact",
    NORMALISED: "duplicate:normalised",
    NEAR: "duplicate:near",
}
MAX_COMPARED = 256
"""A prompt is compared with at most so many survivors of one band."""
RECALL = 0.99


@dataclass
class Judged:
    """One verdict a prompt, and whom it lost to (its index; itself where it survived)."""

    verdict: NDArray[np.uint8]
    winner: NDArray[np.int64]


def bands(threshold: float) -> tuple[int, int]:
    """(bands, rows a band) that find a pair of this similarity with :data:`RECALL` or more.

    As many rows a band as that allows, since that keeps false candidates few.
    """
    for rows in range(16, 1, -1):
        count = PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** count >= RECALL:
            return count, rows
    return PERMUTATIONS, 1


def judge(
    records: NDArray[Any],
    priority: NDArray[np.int64],
    rules: Dedup,
    signatures: Signatures | None,
) -> Judged:
    """Verdicts for all prompts of all sources.

    Args:
        records: key, folded, rank, frame and kind of each, sources one after another.
        priority: the rank of each one's source, lower wins.
        signatures: those of the prompts whose frame is not 0, in the same order.
    """
    import numpy as np

    count = len(records)
    verdict = np.zeros(count, dtype=np.uint8)
    winner = np.arange(count, dtype=np.int64)
    if rules.level == "off" or count == 0:
        return Judged(verdict, winner)
    _same(records["key"], priority, verdict, winner, EXACT)
    if rules.level in ("normalised", "near"):
        _same(records["folded"], priority, verdict, winner, NORMALISED)
    if rules.level == "near" and signatures is not None:
        _near(records, priority, verdict, winner, rules, signatures)
    return Judged(verdict, winner)


def _same(
    keys: NDArray[Any],
    priority: NDArray[np.int64],
    verdict: NDArray[np.uint8],
    winner: NDArray[np.int64],
    cause: int,
) -> None:
    """Of equal keys the first by (priority, place) survives."""
    import numpy as np

    alive = np.flatnonzero(verdict == KEPT)
    part = keys[alive]
    # lexsort is stable, and places ascend; so within equal keys the order is that of rights.
    order = np.lexsort((priority[alive], part[:, 1], part[:, 0]))
    high, low = part[order, 0], part[order, 1]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    first = alive[order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]]
    losers = alive[order[~new]]
    verdict[losers] = cause
    winner[losers] = first[~new]


class Signatures:
    """The signatures of all sources, row *i* for the *i*-th framed prompt, and their bands.

    One pass over the chunks writes them one after another, and for each band a hash of its
    slots; so that later one band is read at a time (eight bytes a prompt), and of the
    signatures only those that are compared.

    Args:
        folder: the work folder; the chunks lie there, and what is written goes there.
        chunks: how many each source has.
        threshold: the lowest similarity that will be asked for.
    """

    def __init__(self, folder: Path, chunks: list[int], threshold: float) -> None:
        self._folder = folder
        self.bands, width = bands(threshold)
        path = folder / "signatures"
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(path.open("wb"))
            outs = [stack.enter_context(self._band(n).open("wb")) for n in range(self.bands)]
            for source, count in enumerate(chunks):
                for block in iter_signatures(folder, source, count):
                    out.write(block.tobytes())
                    for n, band in enumerate(outs):
                        band.write(_mix(block[:, n * width : (n + 1) * width]).tobytes())
        self._file = path.open("rb")

    def _band(self, number: int) -> Path:
        return self._folder / f"band-{number:02d}"

    def rows(self, which: list[int]) -> NDArray[np.uint32]:
        """Some signatures, read one by one: mapped, the file would come to fill the memory."""
        import numpy as np

        size = 4 * PERMUTATIONS
        data = b"".join(os.pread(self._file.fileno(), size, size * row) for row in which)
        return np.frombuffer(data, dtype="<u4").reshape(-1, PERMUTATIONS)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def band(self, number: int) -> NDArray[np.uint64]:
        """A hash of each row's slots in one band."""
        import numpy as np

        return np.fromfile(self._band(number), dtype="<u8")


def _mix(columns: NDArray[Any]) -> NDArray[np.uint64]:
    """A 64-bit hash of each row (multiply and xor-shift, as in MurmurHash3's finaliser)."""
    import numpy as np

    value = np.full(len(columns), 0x9E3779B97F4A7C15, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for n in range(columns.shape[1]):
            value ^= columns[:, n].astype(np.uint64)
            value *= np.uint64(0xFF51AFD7ED558CCD)
            value ^= value >> np.uint64(33)
    return value


def _near(
    records: NDArray[Any],
    priority: NDArray[np.int64],
    verdict: NDArray[np.uint8],
    winner: NDArray[np.int64],
    rules: Dedup,
    signatures: Signatures,
) -> None:
    import numpy as np

    framed = np.flatnonzero(records["frame"] != 0)
    alive = np.flatnonzero(verdict[framed] == KEPT)  # rows of the matrix
    places = framed[alive]
    # By priority, then rank: independent of the order of rows in their files.
    order = np.lexsort((records["key"][places, 0], records["rank"][places], priority[places]))
    rows, places = alive[order], places[order]
    frames = records["frame"][places]
    thresholds = np.array([rules.near, rules.near_code, rules.near_math])
    needed = thresholds[records["kind"][places]]
    groups: dict[int, list[int]] = {}  # prompt → its bands that others share
    for band in range(signatures.bands):
        hashes = signatures.band(band)[rows]
        with np.errstate(over="ignore"):
            hashes ^= frames * np.uint64(0xC4CEB9FE1A85EC53)
        arranged = np.argsort(hashes, kind="stable")
        sorted_ = hashes[arranged]
        shared = np.zeros(len(sorted_), dtype=bool)
        equal = sorted_[1:] == sorted_[:-1]
        shared[1:] |= equal
        shared[:-1] |= equal
        for at in np.flatnonzero(shared).tolist():
            # The band's number keeps equal values of different bands apart.
            groups.setdefault(int(arranged[at]), []).append(int(sorted_[at]) ^ (band << 1))
    survivors: dict[int, list[int]] = {}
    for at in sorted(groups):
        candidates: list[int] = []
        for group in groups[at]:
            candidates += survivors.get(group, ())[:MAX_COMPARED]
        if candidates:
            unique = np.unique(np.array(candidates, dtype=np.int64))
            own, *_ = signatures.rows([int(rows[at])])
            others = signatures.rows(rows[unique].tolist())
            alike = (others == own).mean(axis=1)
            fits = (alike >= np.maximum(needed[unique], needed[at])) & (
                frames[unique] == frames[at]
            )
            if fits.any():
                # The most alike one, of equals the one with the better right.
                best = int(unique[fits][np.argmax(alike[fits])])
                verdict[places[at]] = NEAR
                winner[places[at]] = places[best]
                continue
        for group in groups[at]:
            survivors.setdefault(group, []).append(at)


def shorter_sessions(keys: NDArray[Any], prefixes: list[str]) -> NDArray[np.bool_]:
    """Which prompts of a source are the beginning of another one of it.

    Args:
        keys: first 128 bits of each one's key, as two numbers.
        prefixes: the same as hex digits, of everything that some prompt begins with.
    """
    import numpy as np

    known = set(prefixes)
    found = [key.tobytes().hex() in known for key in np.ascontiguousarray(keys)]
    return np.array(found, dtype=bool)
