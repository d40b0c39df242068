"""Knows how vLLM's CPU build decodes here: plain, and with n-gram speculation.

Refuses to know what is measured. Runs in an environment of its own, beside the torch that it was built for.

Ways: `eager` and `compiled` (by inductor: minutes at the first start), and each with `-ngram-N` behind it, which
proposes N tokens. A process holds one way. The engine steps in this process, so that no second one polls beside
it; its prefix cache is off, since every question asks for the prompts' prefill.
"""

import os
import time
from typing import Any

from benchmarks.peers.lines import Absent, Setting, Stream, serve

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
NGRAM = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}


class Vllm:
    def __init__(self, setting: Setting) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        import vllm  # noqa: PLC0415  # reads the environment as it is imported

        self._parameters = vllm.SamplingParams
        compiled, _, number = setting.way.partition("-ngram-")
        speculation = NGRAM | {"num_speculative_tokens": int(number)} if number else None
        try:
            self._engine: Any = vllm.LLMEngine.from_engine_args(
                vllm.EngineArgs(
                    model=setting.folder,
                    dtype=DTYPES[setting.dtype],
                    max_model_len=setting.length,
                    max_num_seqs=setting.streams,
                    enable_prefix_caching=False,
                    enforce_eager=compiled != "compiled",
                    speculative_config=speculation,
                )
            )
        except Exception as fault:  # what a foreign engine cannot do here is its result
            raise Absent(f"vLLM does not start: {type(fault).__name__}: {fault}") from fault
        self.about = f"{compiled}, n-gram speculation {speculation}"

    def generate(self, prompts: list[list[int]], *, tokens: int, way: str) -> list[Stream]:
        began = time.perf_counter()
        streams = {str(number): Stream() for number in range(len(prompts))}
        asked = self._parameters(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        for name, prompt in zip(streams, prompts, strict=True):
            self._engine.add_request(name, {"prompt_token_ids": prompt}, asked)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                stream = streams[output.request_id]
                stream.emit(began, list(output.outputs[0].token_ids)[len(stream.ids) :])
        return list(streams.values())


if __name__ == "__main__":
    serve(Vllm, packages=("vllm-cpu", "torch", "transformers"))
