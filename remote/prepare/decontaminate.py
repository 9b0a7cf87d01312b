"""Prompts of evaluation sets, and whether a prompt holds one of them."""

from __future__ import annotations

from msgspec import Struct

from remote.prepare import text as texts


class Evaluations(Struct):
    """Normalised evaluation prompts: whole ones, and runs of ``ngram`` words of the longer."""

    ngram: int = 13
    whole: dict[str, str] = {}
    """Words joined → name of the set."""
    runs: dict[str, str] = {}

    def add(self, prompts: list[str], name: str) -> None:
        """Take the user texts of one evaluation prompt."""
        parts = texts.words(texts.normalised("\n".join(prompts)))
        if not parts:
            return
        self.whole.setdefault(" ".join(parts), name)
        for run in texts.ngrams(parts, self.ngram):
            self.runs.setdefault(run, name)

    def hit(self, prompts: list[str]) -> str:
        """Name of the set that this prompt has something of, "" if none.

        A prompt is hit when it is an evaluation prompt, or shares ``ngram`` words in a row
        with one (Brown et al., "Language Models are Few-Shot Learners", appendix C).
        """
        parts = texts.words(texts.normalised("\n".join(prompts)))
        found = self.whole.get(" ".join(parts))
        if found is not None:
            return found
        runs = self.runs
        for run in texts.ngrams(parts, self.ngram):
            if run in runs:
                return runs[run]
        return ""
