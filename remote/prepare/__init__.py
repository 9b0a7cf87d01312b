"""Prompts from datasets: a recipe in, ``prompts.jsonl`` out, the same bytes every time.

Rows are read in fixed chunks (``sources``), each turned into a request or a named drop by
worker processes (``convert``), spooled with its keys (``spool``), judged against all others
(``dedup``), chosen by quota (``mix``) and written in an order of its own (``output``).
Nothing heavy is imported until a recipe is really worked on.
"""
