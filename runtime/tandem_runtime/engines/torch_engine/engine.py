"""Knows how a decoder becomes a `StepModel`: paged memory, ragged steps, and what they promise about their bits.

Refuses to know sessions, sampling and scheduling.

All rows of a step go through the decoder as one flat batch; only hidden rows whose logits are wanted meet the head.

**Row invariance.** On a CPU the logits of a token must not depend on what else is in the step, or speculation could
change the text at a near tie. Our own arithmetic treats rows apart by construction: products (`linear`) and what lies
between them (`between`). When a model is loaded, pieces of a sequence are computed alone and in company all the same,
by one layer, and the engine says `Bitwise` if they have the bits that the whole sequence has. Where our own cannot be
built, and on a GPU, torch computes, which picks routine and order of summation by the number of rows: `NearTie`.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.blocks import BlockId, Blocks, Copy
from tandem_runtime.domain.errors import ModelRefused, Overloaded
from tandem_runtime.engines.options import AS_IS, EngineOptions
from tandem_runtime.engines.screens import screens
from tandem_runtime.engines.torch_engine.adapters import Adapter, adapted_by, read_adapter
from tandem_runtime.engines.torch_engine.architectures import read_config
from tandem_runtime.engines.torch_engine.between import Between, TorchBetween
from tandem_runtime.engines.torch_engine.cache import BLOCK_TOKENS, KeyValueCache, block_bytes, blocks_of
from tandem_runtime.engines.torch_engine.fused import FusedDecoder
from tandem_runtime.engines.torch_engine.linear import Multiplier, multiplier_for
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig
from tandem_runtime.engines.torch_engine.native_between import NativeBetween, built
from tandem_runtime.engines.torch_engine.pair_room import Part, shares, sums
from tandem_runtime.engines.torch_engine.quantised import BITS, Rounding, quantised_multiplier
from tandem_runtime.engines.torch_engine.room import lent_blocks, logits_bytes, toll_of, weight_bytes
from tandem_runtime.memory import available_bytes
from tandem_runtime.native import NotBuilt
from tandem_runtime.ports import Logits, ReadAdapter, Row

__all__ = ["DTYPES", "TorchModel", "load_torch_model", "pair_sums"]

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

PROBE_TOKENS = 70
"""More than four blocks of keys and values."""

PROBE_PIECES = ((0, 1), (0, 20), (1, 2), (15, 1), (16, 1), (17, 5), (30, 9), (40, 30), (63, 6), (69, 1))
"""Start and size of the pieces computed again: across the borders of blocks and of every kind of tile."""

COMPANY_TOKENS = 16


class TorchModel:
    """`ports.StepModel` and `ports.AdaptableModel` over a decoder. Runs on the decoder's own device, in its own type.

    `kv_blocks` None: memory enough for all sessions at full length. Products are by `multiplier`, by default the best
    one for the decoder's device.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        max_sessions: int,
        max_length: int,
        kv_blocks: int | None = None,
        multiplier: Multiplier | None = None,
        known_ids: int | None = None,
    ) -> None:
        embedding = decoder.model.embed_tokens.weight
        self.multiplier = multiplier or multiplier_for(embedding.device)
        self._between = _between(self.multiplier, decoder.config, like=embedding)
        self._decoder = FusedDecoder(decoder, length=max_length, linear=self.multiplier.linear, ids=known_ids)
        weight = self._decoder.embedding
        self._device = weight.device
        self.max_length = max_length
        self.max_sessions = max_sessions
        count = max_sessions * blocks_of(max_length) if kv_blocks is None else kv_blocks
        self._cache = KeyValueCache(decoder.config, blocks=count, dtype=weight.dtype, device=self._device)
        self.blocks = Blocks(count, block_tokens=BLOCK_TOKENS)
        self.toll = toll_of(decoder.config, weight.dtype, outputs=self._decoder.ids)
        self._adapters: dict[AdapterDigest, Adapter] = {}
        self.determinism = "Bitwise" if self._is_row_invariant() else "NearTie"

    @property
    def vocab_size(self) -> int:
        return self._decoder.ids

    @property
    def block_bytes(self) -> int:
        return block_bytes(self._decoder.config, self._cache.like.dtype)

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        """Raises Overloaded where the device's memory does not suffice for this step."""
        try:
            return _split(self._logits(rows), rows)
        except (MemoryError, RuntimeError) as error:
            if not _is_of_memory(error):
                raise
            raise Overloaded("the device is out of memory; try again later") from error

    def read_adapter(self, folder: Path) -> ReadAdapter:
        """As `ports.AdaptableModel`."""
        try:
            adapter = read_adapter(folder, self._decoder.config, like=self._decoder.embedding)
        except (MemoryError, RuntimeError) as error:
            if not _is_of_memory(error):
                raise
            raise ModelRefused(f"{folder}: there is no memory for this adapter; unload another one") from error
        install = partial(self._adapters.__setitem__, adapter.digest, adapter)
        return ReadAdapter(adapter.digest, adapter.rank, adapter.nbytes, install)

    def drop_adapter(self, digest: AdapterDigest) -> None:
        del self._adapters[digest]

    @torch.inference_mode()
    def copy(self, copies: Sequence[Copy]) -> None:
        self._cache.copy(copies)

    @torch.inference_mode()
    def _logits(self, rows: Sequence[Row]) -> Logits:
        """[sum of outputs, vocab]"""
        wanted = torch.tensor(_wanted(rows), dtype=torch.int64, device=self._device)
        array: Logits = self._decoder.logits(self._hidden(rows)[wanted]).float().cpu().numpy()
        return array

    @torch.inference_mode()
    def _hidden(self, rows: Sequence[Row], *, layers: int | None = None) -> Tensor:
        """[sum of tokens, hidden] after the first `layers`; None: after all."""
        places = [(token, row.start + i) for row in rows for i, token in enumerate(row.tokens)]
        tokens, positions = torch.tensor(places, device=self._device).T.contiguous()
        step = self._between.step(self._cache, rows)
        adapt = adapted_by(self._adapters, rows, linear=self.multiplier.linear, device=self._device)
        return self._decoder.hidden(tokens, positions, step, adapt=adapt, layers=layers)

    def _is_row_invariant(self) -> bool:
        """Do pieces of a sequence have the same bits as the whole, alone and beside another row?

        The last block keeps the company, since one session may be all that there is memory for; where there is but one
        block, no step ever has company.
        """
        if isinstance(self._between, TorchBetween):
            return False
        count = min(PROBE_TOKENS, max(1, self.blocks.count - 1) * BLOCK_TOKENS, self.max_length)
        tokens = tuple((7 * i * i + i) % self.vocab_size for i in range(count))
        table = tuple(BlockId(block) for block in reversed(range(self.blocks.count)))
        company = Row(table[-1:], 0, tokens[:COMPANY_TOKENS], outputs=0)
        companies = ([], [company]) if self.blocks.count > 1 else ([],)
        whole = self._hidden([Row(table, 0, tokens, outputs=0)], layers=1)
        for start, size in sorted(PROBE_PIECES, reverse=True):  # a piece overwrites what stands beyond its start
            piece = Row(table, start, tokens[start : start + size], outputs=0)
            for beside in companies if start + size <= count else ():
                if not torch.equal(self._hidden([piece, *beside], layers=1)[:size], whole[start : start + size]):
                    return False
        return True


def _between(multiplier: Multiplier, config: DecoderConfig, *, like: Tensor) -> Between:
    """Our own beside our own product: they stand for rows that do not depend on each other, or neither does."""
    if not multiplier.row_invariant:
        return TorchBetween(config, device=like.device)
    try:
        return NativeBetween(built(), config, dtype=like.dtype)
    except NotBuilt as reason:
        logger.warning("torch computes what lies between products, since ours was not built: %s", reason)
        return TorchBetween(config, device=like.device)


def load_torch_model(options: EngineOptions, *, known_ids: int | None = None) -> TorchModel:
    """The model of the folder `options.model` as a `StepModel`. Raises ModelRefused.

    `known_ids`: how many its tokenizer knows. Rows of the head beyond them are padding, and are not computed, so no
    temperature, bias or grammar lets a token be drawn that has no text.
    """
    folder, device = Path(options.model), _device_named(options.device)
    config, dtype, length = _asked(options)
    available = _available(device)
    blocks = lent_blocks(options, config, dtype=dtype, length=length, available=available)
    torch.set_num_threads(options.threads)
    decoder = _loaded(folder, weights=options.weights, dtype=dtype, device=device)
    multiplier = (multiplier_for if options.weights == AS_IS else quantised_multiplier)(torch.device(device))
    make = partial(TorchModel, decoder, multiplier=multiplier, known_ids=known_ids)
    model = _with_memory(make, max_sessions=options.max_sessions, max_length=length, kv_blocks=blocks)
    model.toll = toll_of(decoder.config, dtype, weights=options.weights, outputs=model.vocab_size)
    about = (device, options.dtype, options.weights, model.determinism, multiplier.about, screens().about)
    logger.info("loaded device=%s dtype=%s weights=%s determinism=%s products: %s; screens: %s", *about)
    return model


def pair_sums(target: EngineOptions, draft: EngineOptions) -> tuple[EngineOptions, EngineOptions, str]:
    """Both with their part of the memory for keys and values, and the sum in words. Loads nothing. Raises ModelRefused.

    `kv_bytes` of the target is for both together.
    """
    available = _available(_device_named(target.device))
    length = max(_asked(options)[2] for options in (target, draft))
    parts = [_part("--target", target), _part("--draft", draft)]
    lent = shares(available, parts, length=length, asked=target.kv_bytes)
    told = f"{sums(available, parts)}: {lent[0]} for the target's, {lent[1]} for the draft's"
    return replace(target, kv_bytes=lent[0]), replace(draft, kv_bytes=lent[1]), told


def _part(role: str, options: EngineOptions) -> Part:
    config, dtype, length = _asked(options)
    return Part(
        name=f"{role} {options.model}",
        weights=weight_bytes(config, dtype, weights=options.weights),
        logits=logits_bytes(options, config, dtype),
        block=block_bytes(config, dtype),
        one=blocks_of(length),
        sessions=options.max_sessions,
    )


def _asked(options: EngineOptions) -> tuple[DecoderConfig, torch.dtype, int]:
    """The model's config, what it is computed in, and how long its sessions get. Raises ModelRefused."""
    if options.dtype not in DTYPES:
        raise ModelRefused(f"--dtype {options.dtype}: this engine computes in {' or '.join(DTYPES)}")
    if options.weights not in (AS_IS, *BITS):
        raise ModelRefused(f"{options.weights} weights: this engine holds them {AS_IS} or as {' or '.join(BITS)}")
    folder = Path(options.model)
    dtype, length = DTYPES[options.dtype], _allowed_length(folder, options.max_length)
    sizes = (("--threads", options.threads), ("--max-sessions", options.max_sessions), ("--max-length", length))
    for option, value in sizes:
        if value < 1:
            raise ModelRefused(f"{option} {value}: give 1 or more")
    return read_config(folder), dtype, length


def _available(device: str) -> int:
    return available_bytes() if device == "cpu" else torch.cuda.mem_get_info(device)[0]


def _with_memory(make: Callable[..., TorchModel], *, max_sessions: int, max_length: int, kv_blocks: int) -> TorchModel:
    try:
        return make(max_sessions=max_sessions, max_length=max_length, kv_blocks=kv_blocks)
    except (MemoryError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        raise ModelRefused(
            f"--max-sessions {max_sessions} of --max-length {max_length}: there is no memory for so many keys and "
            "values; lower either, or give --kv-bytes"
        ) from error


def _device_named(name: str) -> str:
    """Raises ModelRefused for what is no device, or none that is here."""
    count = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if count else "cpu"
    if not (name == "cpu" or re.fullmatch(r"cuda(:[0-9]{1,4})?", name)):
        raise ModelRefused(f"--device {name}: give cpu, cuda, cuda:N or auto")
    if name != "cpu" and int(name.partition(":")[2] or 0) >= count:
        raise ModelRefused(f"--device {name}: torch sees {count} CUDA devices here; give another, or cpu")
    return name


def _loaded(folder: Path, *, dtype: torch.dtype, device: str, weights: str) -> Decoder:
    try:
        packing = None if weights == AS_IS else Rounding(BITS[weights])
        return load_decoder(folder, dtype=dtype, device=device, packing=packing)
    except (MemoryError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        raise ModelRefused(
            f"{folder}: {device} has no memory for its weights as {dtype}; take a smaller model"
        ) from error


def _is_of_memory(error: Exception) -> bool:
    """On a CPU torch says it by a RuntimeError with such words."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)


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
