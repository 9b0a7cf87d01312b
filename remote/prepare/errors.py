"""What goes wrong in one line, and libraries that may be missing."""

from __future__ import annotations

import importlib
from typing import Any


class PrepareError(Exception):
    """One line for people: what, and what to do."""


class RecipeError(PrepareError):
    """The recipe, or what it names, is at fault: nothing was begun."""


def need(module: str) -> Any:
    """A module of the ``prepare`` extra.

    Raises:
        RecipeError: it is not installed; the line says how it gets there.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise RecipeError(
            f"prepare needs {name}, which is not installed: pip install 'stoker[prepare]'"
        ) from error
