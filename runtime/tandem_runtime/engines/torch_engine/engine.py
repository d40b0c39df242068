"""Knows how a decoder becomes a `StepModel`: slots, ragged steps, and what they promise about their bits.

Refuses to know sessions, sampling and scheduling.

All rows of a step go through the decoder as one flat batch; only hidden rows whose logits are wanted meet the head.

**Row invariance.** On a CPU the logits of a token must not depend on what else is in the step, or speculation could
change the text at a near tie. Here every operation but products with weights and attention treats rows apart. Our own
product does too (see `linear`); attention, and torch's product where ours cannot be built, are made independent of
their company by padding (see `attention`). How much padding that takes is a property of the machine's libraries: fewer
than 4 rows take another path through MKL on AVX2, for instance. So it is found when the model is loaded: the smallest
padding for which pieces of a sequence, alone and in company, have the bits that the whole sequence has. If none does,
or on a GPU, the engine says `NearTie`.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tandem_runtime.domain.errors import ModelRefused, Overloaded
from tandem_runtime.engines.torch_engine.architectures import read_config
from tandem_runtime.engines.torch_engine.attention import Attention
from tandem_runtime.engines.torch_engine.cache import KeyValueCache
from tandem_runtime.engines.torch_engine.fused import FusedDecoder
from tandem_runtime.engines.torch_engine.linear import Multiplier, multiplier_for
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.engines.torch_engine.model import Decoder
from tandem_runtime.ports import Logits, Row

__all__ = ["DTYPES", "TorchModel", "load_torch_model"]

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

PADDINGS = (4, 8, 16)
"""Least rows of a matrix product, in the order in which they are tried."""

PROBE_TOKENS = 540
"""Long enough for every number of keys that attention multiplies at once."""

PROBE_PIECES = (
    *((at, 1) for at in (0, 1, 62, 63, 64, 65, 127, 128, 149, 191, 192, 383, 384, 511, 512, 539)),
    *((at, 2) for at in (1, 63, 100, 300)),
    *((at, 6) for at in (0, 3, 59, 64, 120, 144, 189, 380, 509)),
    *((at, 20) for at in (0, 50, 130, 185, 500)),
    (0, 70),
    (70, 80),
    (150, 240),
)
"""Start and size of the pieces computed again: every kind of tile, across the borders of padded key counts."""

COMPANY_TOKENS = 16


class TorchModel:
    """`ports.StepModel` over a decoder. Runs on the decoder's own device, in its own type."""

    def __init__(
        self, decoder: Decoder, *, max_sessions: int, max_length: int, multiplier: Multiplier | None = None
    ) -> None:
        """Products are by `multiplier`, which is by default the best one for the decoder's device."""
        self.multiplier = multiplier or multiplier_for(decoder.model.embed_tokens.weight.device)
        self._decoder = FusedDecoder(decoder, length=max_length, linear=self.multiplier.linear)
        weight = self._decoder.embedding
        self._device = weight.device
        self._max_length = max_length
        self._cache = KeyValueCache(
            decoder.config, slots=max_sessions, length=max_length, dtype=weight.dtype, device=self._device
        )
        self._free = list(reversed(range(max_sessions)))
        self._lengths: dict[int, int] = {}
        self._max_sessions = max_sessions
        self._padding = PADDINGS[0]
        self.determinism = self._settle_padding()

    @property
    def vocab_size(self) -> int:
        return self._decoder.config.vocab_size

    @property
    def max_length(self) -> int:
        return self._max_length

    @property
    def kv_used(self) -> float:
        return sum(self._lengths.values()) / (self._max_sessions * self._max_length)

    def allocate(self) -> int:
        if not self._free:
            raise Overloaded(f"all {self._max_sessions} sessions of this engine are taken; try again later")
        slot = self._free.pop()
        self._cache.clear(slot)
        self._lengths[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        del self._lengths[slot]
        self._free.append(slot)

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        """Raises Overloaded where the device's memory does not suffice for this step."""
        for row in rows:
            assert row.start <= self._lengths[row.slot], "a row begins where its slot has nothing"
            self._lengths[row.slot] = row.start + len(row.tokens)
        try:
            return _split(self._logits(rows), rows)
        except torch.OutOfMemoryError as error:
            raise Overloaded("the device is out of memory; try again later") from error

    @torch.inference_mode()
    def _logits(self, rows: Sequence[Row]) -> Logits:
        """[sum of outputs, vocab]"""
        least = 1 if self.multiplier.row_invariant else self._padding
        filling = max(0, least - sum(len(row.tokens) for row in rows))
        places = [(token, row.start + i, row.slot) for row in rows for i, token in enumerate(row.tokens)]
        places += [(0, 0, self._cache.spare)] * filling
        tokens, positions, slots = torch.tensor(places, device=self._device).unbind(1)
        attend = Attention(self._cache, rows, slots=slots, positions=positions, least_rows=self._padding)
        hidden = self._decoder.hidden(tokens, positions, attend)
        wanted = _wanted(rows)
        picked = torch.tensor(wanted + [0] * (least - len(wanted)), device=self._device)
        logits = self._decoder.logits(hidden[picked])[: len(wanted)]
        array: Logits = logits.float().cpu().numpy()
        return array

    def _settle_padding(self) -> str:
        if self._device.type != "cpu":
            return "NearTie"
        for padding in PADDINGS:
            self._padding = padding
            if self._is_row_invariant():
                return "Bitwise"
        self._padding = 1
        return "NearTie"

    def _is_row_invariant(self) -> bool:
        """Do pieces of a sequence have the same bits as the whole, alone and beside another row?"""
        count = min(PROBE_TOKENS, self._max_length)
        tokens = tuple((7 * i * i + i) % self.vocab_size for i in range(count))
        company = Row(self._cache.spare, 0, tokens[:COMPANY_TOKENS], outputs=1)
        whole = self._logits([Row(0, 0, tokens, outputs=count)])
        for start, size in PROBE_PIECES:
            piece = Row(0, start, tokens[start : start + size], outputs=size)
            if start + size > count:
                continue
            for rows in ([piece], [piece, company]):
                if not np.array_equal(self._logits(rows)[:size], whole[start : start + size]):
                    return False
        return True


def load_torch_model(
    folder: Path, *, dtype: str, threads: int, max_sessions: int, max_length: int | None = None
) -> TorchModel:
    """The model of `folder` as a `StepModel`, on the first CUDA device if there is one, else on `threads` CPU cores.

    `max_length` is by default what the model was made for. Raises ModelRefused.
    """
    if dtype not in DTYPES:
        raise ModelRefused(f"--dtype {dtype}: this engine computes in {' or '.join(DTYPES)}")
    length = _allowed_length(folder, max_length)
    for option, value in (("--threads", threads), ("--max-sessions", max_sessions), ("--max-length", length)):
        if value < 1:
            raise ModelRefused(f"{option} {value}: give 1 or more")
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoder = load_decoder(folder, dtype=DTYPES[dtype], device=device)
    try:
        model = TorchModel(decoder, max_sessions=max_sessions, max_length=length)
    except (MemoryError, RuntimeError) as error:  # torch says "not enough memory" on a CPU by a RuntimeError
        if "memory" not in str(error):
            raise
        raise ModelRefused(
            f"--max-sessions {max_sessions} of --max-length {length}: there is no memory for so many keys and values; "
            "lower either"
        ) from error
    logger.info("loaded dtype=%s determinism=%s products: %s", dtype, model.determinism, model.multiplier.about)
    return model


def _allowed_length(folder: Path, asked: int | None) -> int:
    config = read_config(folder)
    limit = config.max_length
    if asked is not None and asked > limit:
        field = "max_position_embeddings" if limit == config.max_position_embeddings else "sliding_window"
        raise ModelRefused(f"--max-length {asked}: {field} of {folder / 'config.json'} allows {limit} positions")
    return limit if asked is None else asked


def _wanted(rows: Sequence[Row]) -> list[int]:
    """The flat indices of all rows whose logits are wanted."""
    wanted: list[int] = []
    end = 0
    for row in rows:
        end += len(row.tokens)
        wanted += range(end - row.outputs, end)
    return wanted


def _split(logits: Logits, rows: Sequence[Row]) -> list[Logits]:
    parts, first = [], 0
    for row in rows:
        parts.append(logits[first : first + row.outputs])
        first += row.outputs
    return parts
