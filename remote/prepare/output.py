"""The files of a build: written whole, and begun with an earlier one where that is asked."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from remote.prepare.convert import ID_LENGTH
from remote.prepare.errors import PrepareError, RecipeError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rows_path(output: Path) -> Path:
    """Where the file with one row a prompt lies: what is known of it and where it came from."""
    return output.with_name(output.name.removesuffix(".jsonl") + ".rows.jsonl")


def earlier_ids(path: Path) -> list[str]:
    """The ids of a prompts file, in its order."""
    try:
        with path.open("rb") as file:
            return [msgspec.json.decode(line, type=_Identified).id for line in file]
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file to go on from") from None
    except msgspec.DecodeError as error:
        raise RecipeError(f"{path}: not a prepared prompts file: {error}") from error


class _Identified(msgspec.Struct):
    id: str


def in_front(chosen: NDArray[Any], earlier: list[str], path: Path) -> NDArray[Any]:
    """The chosen ones with the earlier ones in front, in their order."""
    import numpy as np

    keys = np.ascontiguousarray(chosen["key"]).tobytes()
    size = ID_LENGTH // 2
    place = {keys[16 * n : 16 * n + size].hex(): n for n in range(len(chosen))}
    front: list[int] = []
    for line, identity in enumerate(earlier):
        found = place.get(identity[:ID_LENGTH])
        if found is None:
            raise PrepareError(
                f"{path}: line {line + 1} is not among what this recipe chooses; use the recipe"
                " that made it, with larger quotas"
            )
        front.append(found)
    rest = np.ones(len(chosen), dtype=bool)
    rest[front] = False
    return np.concatenate([chosen[front], chosen[rest]])


class Whole:
    """A file that appears whole or not at all, with its hash."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        self._file = self._part.open("wb")
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def begins_with(self, other: Path) -> bool:
        """Whether the bytes so far begin with those of another file."""
        self._file.flush()
        with self._part.open("rb") as own, other.open("rb") as wanted:
            while block := wanted.read(1 << 20):
                if own.read(len(block)) != block:
                    return False
        return True

    def close(self) -> tuple[str, int]:
        """Make it appear; its SHA-256 and size."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self._path)
        return self._digest.hexdigest(), self._size

    def abandon(self) -> None:
        """Leave nothing of it."""
        self._file.close()
        self._part.unlink(missing_ok=True)
