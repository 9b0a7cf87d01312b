"""The sentences that simulated answers are made of.

A few dozen patterns, filled with words, make some thousand sentences; each is tokenised once. An
answer is a shuffle of them, so that it costs next to nothing, differs from every other and never
turns in circles.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import NamedTuple

from console.lab.sim.tokens import tokenizer


class Piece(NamedTuple):
    """A stretch of text with its tokens."""

    text: str
    ids: tuple[int, ...]


THOUGHTS = (
    "Let me check {the} {noun} against {the} {noun2} before I go on.",
    "If {the} {noun} is {adj}, then {the} {noun2} should be {adj2} as well.",
    "Wait, {the} {noun} could also depend on {the} {noun2}, so I should look at both.",
    "So far {the} {noun} has {number} parts, and each of them is {adj}.",
    "I should not forget that {the} {noun} comes after {the} {noun2}.",
    "A quick test with {number} and {number2} shows that {the} {noun} holds.",
    "Perhaps {the} {noun} is only {adj} when {the} {noun2} is {adj2}.",
    "Let me write {the} {noun} once more in terms of {the} {noun2}.",
    "The user asks for {the} {noun}, not for {the} {noun2}, so I will keep it {adj}.",
    "That leaves {number} cases for {the} {noun}, and only one of them is {adj}.",
    "Suppose {the} {noun} were {adj}; then {the} {noun2} would grow by {number}.",
    "Now compare {the} {noun} with {the} {noun2}: the difference is {number}.",
    "I think {the} {noun} is {adj}, but a second look at {the} {noun2} will tell.",
    "Dividing {number2} by {number} gives a {adj} {noun}, which is what we expect.",
    "There is one more thing about {the} {noun}: it must stay {adj} throughout.",
    "Okay, {the} {noun} is settled, so the next step is {the} {noun2}.",
    "Both ways of reading {the} {noun} lead to the same {adj} {noun2}.",
    "It would be {adj} to leave {the} {noun} out, so I will mention it.",
    "Counting again, {the} {noun} appears {number} times and {the} {noun2} only once.",
    "The simplest way to see {the} {noun} is to start from {the} {noun2}.",
    "In other words, {the} {noun} does not change when {the} {noun2} does.",
    "Hmm, {number} is too small for {the} {noun}, and {number2} is too large.",
    "Let me see whether {the} {adj} {noun} fits with what was said about {the} {noun2}.",
    "A counterexample would need a {adj} {noun} without any {noun2}, and there is none.",
)

STATEMENTS = (
    "The {noun} is {adj} because {the} {noun2} sets its limit.",
    "First, prepare {the} {noun}; then bring in {the} {noun2} step by step.",
    "In practice {the} {noun} takes about {number} minutes and needs a {adj} {noun2}.",
    "Note that a {adj} {noun} does not replace a {adj2} {noun2}.",
    "With {number} items {the} {noun} stays {adj}, and with {number2} it still does.",
    "This is why {the} {noun} comes first and {the} {noun2} second.",
    "A good {noun} should be {adj}, {adj2} and easy to explain.",
    "You can see the effect in {the} {noun}: it follows {the} {noun2} closely.",
    "Most people start with {the} {noun} and only later think about {the} {noun2}.",
    "To sum up the last point, {the} {noun} and {the} {noun2} belong together.",
    "If {the} {noun} fails, go back to {the} {noun2} and try a {adj} one.",
    "Keep {the} {noun} below {number}, otherwise {the} {noun2} becomes {adj}.",
    "The {adj} part is {the} {noun}, which depends on {the} {noun2} alone.",
    "As a rule, {number} checks of {the} {noun} are enough for a {adj} result.",
    "Here {the} {noun} means the {adj} share of {the} {noun2}.",
    "An example makes it clear: take {number} of {the} {noun} and add {number2}.",
    "After that, {the} {noun} can be compared with {the} {noun2} directly.",
    "It is {adj} to write {the} {noun} down before {the} {noun2} is known.",
    "Where {the} {noun} is {adj}, {the} {noun2} can be left as it is.",
    "The result for {the} {noun} is {number}, which agrees with {the} {noun2}.",
    "For a {adj} {noun}, choose {the} {noun2} that changes the least.",
    "Both {the} {noun} and {the} {noun2} were {adj} in the first trial.",
    "Finally, {the} {noun} should be tested once with a {adj} {noun2}.",
    "The cost of {the} {noun} grows slowly, by about {number} for each {noun2}.",
)

NOUNS = """
    answer argument average balance base bound branch budget case chain change check choice
    circle clause column condition cost count cycle data date degree detail distance draft
    edge effect element equation error estimate event example factor field figure form formula
    fraction function gap goal graph group growth idea index input interval item key law layer
    length letter level limit line link list loop map margin mark mass matrix mean measure
    method model motion name node number object offset order origin output page pair part path
    pattern phase plan point price problem process product proof property question range rate
    ratio reason record relation remainder report result root route row rule sample scale
    scheme score season sequence series set shape share sign signal sketch slope solution
    source space speed square stage standard state step story string structure sum surface
    symbol system table target task term test text theory time total trace tree trend unit
    value variable vector version volume weight width word
""".split()

ADJECTIVES = """
    able actual basic best better brief careful certain clean clear close common complete
    complex constant correct direct double early easy empty equal even exact fair false final
    finite first fixed formal free full general given good half hard heavy helpful high ideal
    important independent large late linear little local long low main modern narrow natural
    negative new normal odd open ordinary plain positive possible practical precise present
    prime proper quick random rare real regular right round safe same sharp short similar
    simple single slow small smooth solid special stable steady strict strong sufficient tight
    true typical uniform unique useful usual valid whole wide
""".split()

OPENINGS = tuple(
    f"{start}, {rest}"
    for start in (
        "Okay",
        "Let me think",
        "First of all",
        "To begin with",
        "Right",
        "Looking at this",
        "Step by step",
        "In short",
    )
    for rest in (
        "this is about",
        "the question is about",
        "we are asked about",
        "the subject here is",
        "the key words are",
        "what matters is",
        "I will start from",
        "the task mentions",
    )
)
"""Each answer to one prompt begins with another of these: which one says which answer it is, so
that a partial answer can be told from every other and continued."""

PARAGRAPH = 6
"""Sentences to a paragraph."""


def _sentences(patterns: tuple[str, ...], rng: random.Random, copies: int) -> list[str]:
    made = []
    for _ in range(copies):
        for pattern in patterns:
            noun, noun2 = rng.sample(NOUNS, 2)
            adj, adj2 = rng.sample(ADJECTIVES, 2)
            made.append(
                pattern.format(
                    the=rng.choice(("the", "each", "that", "this")),
                    noun=noun,
                    noun2=noun2,
                    adj=adj,
                    adj2=adj2,
                    number=rng.randint(2, 99),
                    number2=rng.randint(100, 999),
                )
            )
    return list(dict.fromkeys(made))


class Bank(NamedTuple):
    """Sentences ready for use, each as it stands inside a paragraph and at the head of one."""

    thoughts: list[Piece]
    thought_heads: list[Piece]
    statements: list[Piece]
    statement_heads: list[Piece]


@lru_cache(maxsize=1)
def bank() -> Bank:
    """All sentences, tokenised; the same in every process."""
    rng = random.Random("stoker")
    encode = tokenizer().encode

    def pieces(lead: str, sentences: list[str]) -> list[Piece]:
        return [Piece(lead + text, tuple(encode(lead + text))) for text in sentences]

    thoughts = _sentences(THOUGHTS, rng, 16)
    statements = _sentences(STATEMENTS, rng, 16)
    return Bank(
        pieces(" ", thoughts),
        pieces("\n\n", thoughts),
        pieces(" ", statements),
        pieces("\n\n", statements),
    )
