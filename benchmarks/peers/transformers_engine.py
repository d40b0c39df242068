"""Knows how transformers decodes here: plain, by prompt lookup, and assisted by the model's own first layers.

Refuses to know what is measured. It runs beside the torch that the bundled engine runs on.

Ways: `plain`; `lookup-N` proposes N tokens by prompt lookup; `assisted-N` drafts with the first N layers, since there
is no smaller model with this tokenizer to assist. The last two decode one prompt at a time, as the library demands.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from benchmarks.peers.lines import Setting, Stream, serve

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Streamer:
    """Hears prompts first, then tokens: [batch] of each step, or [1, n] of an assisted round."""

    def __init__(self, prompts: int) -> None:
        self.streams = [Stream() for _ in range(prompts)]
        self._began = time.perf_counter()
        self._heard_prompts = False

    def put(self, value: torch.Tensor) -> None:
        if not self._heard_prompts:
            self._heard_prompts = True
            return
        for stream, ids in zip(self.streams, value.reshape(len(self.streams), -1).tolist(), strict=True):
            stream.emit(self._began, ids)

    def end(self) -> None:
        """All was heard."""


class Transformers:
    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(setting.threads)
        classes: Any = transformers.AutoModelForCausalLM
        self._model = classes.from_pretrained(setting.folder, dtype=DTYPES[setting.dtype]).eval()
        self._model.generation_config.eos_token_id = None  # no text ends before its length
        self.about = f"eager, attention {self._model.config._attn_implementation}"

    def generate(self, prompts: list[list[int]], *, tokens: int, way: str) -> list[Stream]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        streamer = Streamer(len(prompts))
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                streamer=streamer,
                **_options(way),
            )
        return _cut(streamer.streams, tokens)


def _options(way: str) -> dict[str, int]:
    name, _, number = way.partition("-")
    match name:
        case "plain":
            return {}
        case "lookup":
            return {"prompt_lookup_num_tokens": int(number)}
        case "assisted":
            return {"assistant_early_exit": int(number)}
    raise ValueError(f"way {way!r}: this engine decodes plain, lookup-N or assisted-N")


def _cut(streams: Sequence[Stream], tokens: int) -> list[Stream]:
    """A last round may bring more than was asked for."""
    for stream in streams:
        beyond = max(0, len(stream.ids) - tokens)
        if beyond:
            stream.ids = stream.ids[:tokens]
            seconds, count = stream.events[-1]
            stream.events[-1] = (seconds, count - beyond)
    return list(streams)


if __name__ == "__main__":
    serve(Transformers, packages=("transformers", "torch"))
