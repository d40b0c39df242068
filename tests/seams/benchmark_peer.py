"""An engine that counts: started by the tests as a benchmark starts its own. What it is asked to be is its dtype."""

import time

from benchmarks.peers.lines import Absent, Setting, Stream, serve


class Counting:
    about = "counts on from the last id of a prompt"

    def generate(self, prompts: list[list[int]], *, tokens: int, way: str) -> list[Stream]:
        print("what libraries print is no answer")
        if way == "wrong":
            raise ValueError("no such way")
        if way == "late":
            time.sleep(60)
        began = time.perf_counter()
        streams = [Stream() for _ in prompts]
        for stream, prompt in zip(streams, prompts, strict=True):
            for number in range(tokens):
                stream.emit(began, [prompt[-1] + 1 + number])
        return streams


def start(setting: Setting) -> Counting:
    if setting.dtype == "absent":
        raise Absent("this machine lacks it")
    return Counting()


if __name__ == "__main__":
    serve(start, packages=("pytest",))
