"""A simulated SGLang server: the real one's processes, phases, log lines, HTTP and numbers.

It serves two dialects, 0.5.12 and 0.5.23, without a GPU and without PyTorch. What it imitates
was read from the public sources of SGLang (``sglang/srt``) at those two versions.
"""
