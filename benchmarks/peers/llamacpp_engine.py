"""Knows how llama.cpp decodes here, through the bindings of xllamacpp, whose wheels are built.

Refuses to know what is measured. It reads the GGUF file as it is: 4-bit weights, so a class of its own.

Ways: `plain`; `ngram` speculates with its own `ngram-simple`. A process holds one way. It gives text, so ids stay
empty; the number of tokens is its own count. It forbids end tokens, where the others go on behind them.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp

from benchmarks.peers.lines import Setting, Stream, serve


class LlamaCpp:
    def __init__(self, setting: Setting) -> None:
        asked: Any = xllamacpp.CommonParams()
        asked.model.path = setting.folder
        asked.n_parallel = setting.streams
        asked.n_ctx = setting.length * setting.streams
        asked.n_gpu_layers = 0
        asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = setting.threads
        if setting.way == "ngram":
            asked.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        self._server: Any = xllamacpp.Server(asked)
        self.about = str(xllamacpp.get_system_info()).strip()

    def generate(self, prompts: list[list[int]], *, tokens: int, way: str) -> list[Stream]:
        began = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as threads:
            return list(threads.map(lambda prompt: self._complete(prompt, tokens, began), prompts))

    def _complete(self, prompt: list[int], tokens: int, began: float) -> Stream:
        heard: list[tuple[float, Any]] = []
        asked = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
        }
        self._server.handle_completions(asked, lambda chunk: heard.append((time.perf_counter() - began, chunk)))
        return _stream(heard)


def _stream(heard: list[tuple[float, Any]]) -> Stream:
    """A chunk is a token, but where a character takes several: what the last chunk counts beyond them came by then."""
    told = heard[-1][1]
    if "timings" not in told:
        raise RuntimeError(f"llama.cpp answered {str(told)[:200]}")
    if told["timings"]["cache_n"]:
        raise RuntimeError("llama.cpp found the prompt in its cache, which was asked to be off")
    moments = [at for at, _ in heard]
    rest = int(told["timings"]["predicted_n"]) - (len(moments) - 1)
    return Stream(events=[*((at, 1) for at in moments[:-1]), (moments[-1], rest)])


if __name__ == "__main__":
    serve(LlamaCpp, packages=("xllamacpp",))
