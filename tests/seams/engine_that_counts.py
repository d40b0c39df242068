"""An engine for `benchmarks.engine_processes` that says the name in its environment, and counts instead of decoding."""

import os

from benchmarks.peers.lines import Setting, Stream, serve


class Counting:
    def __init__(self, _: Setting) -> None:
        self.about = os.environ["NAME"]

    def generate(self, prompts: list[list[int]], *, tokens: int, way: str) -> list[Stream]:
        assert way == self.about, "it was asked what another engine should answer"
        return [Stream(list(range(tokens)), [(0.1, tokens)]) for _ in prompts]


if __name__ == "__main__":
    serve(Counting, packages=())
