"""A folder in the Hugging Face layout -> a ready decoder, or an error that says what is wrong with which file.

Refuses to know engines, and which models there are: `architectures` reads configurations, `shards` reads files.

Everything that can be checked is checked on the headers, before a weight is read: the configuration, and the name,
shape and type of every tensor. Then one tensor after the other is copied out of its file to where it will serve:
loading takes the memory of the model and of no more, and a file that is changed later does not change what is served.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.torch_engine.architectures import read_config
from tandem_runtime.engines.torch_engine.fused import EMBEDDING, HEAD, Form, place
from tandem_runtime.engines.torch_engine.model import Decoder, NothingDrawn, shape_of
from tandem_runtime.engines.torch_engine.shards import READ_TYPES, Stored, read_headers, tensors

__all__ = ["Packing", "load_decoder"]

_log = logging.getLogger(__name__)

DERIVED = ".rotary_emb.inv_freq"
"""Old folders hold the angles of rotary positions, which follow from config.json."""

LARGE_BYTES = 1 << 30
"""From here on loading takes long enough for a reader of the log to wonder."""


class Packing(Protocol):
    """How weights of products are held, if not as plain numbers."""

    def form(self, name: str, inputs: int) -> Form:
        """Of the weight of that name."""
        ...

    def write(self, name: str, weight: Tensor, home: Tensor) -> None:
        """`weight` [outputs, inputs] of any floating type, into `home` [outputs, ...] of that form on the device."""
        ...


def load_decoder(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    packing: Packing | None = None,
) -> Decoder:
    """The model of `folder`, in evaluation mode, its weights converted to `dtype`, or packed those of products: then a
    head that is the embedding becomes one of its own.

    Raises ModelRefused, naming the file and the field or tensor, before memory for weights is taken.
    """
    decoder = shape_of(read_config(folder))
    wanted = {name: tuple(weight.shape) for name, weight in decoder.state_dict().items()}
    held = read_headers(folder)
    _check(folder, wanted, held)
    _check_head(wanted, held)
    forms = {} if packing is None else _forms(decoder, packing)
    place(decoder, forms, dtype=dtype, device=torch.device(device))
    chosen = [held[name] for name in wanted]
    for stored, weight in _reported(folder, tensors(chosen), sum(stored.end - stored.begin for stored in chosen)):
        _write(decoder, stored.name, weight, packing if stored.name in forms else None)
    if HEAD in forms.keys() - wanted.keys():
        _write(decoder, HEAD, decoder.model.embed_tokens.weight, packing)
    return decoder.eval()


def _forms(decoder: Decoder, packing: Packing) -> dict[str, Form]:
    """Of all products of `decoder`, the head one of them."""
    if decoder.lm_head is None:
        with torch.device("meta"), NothingDrawn():
            decoder.lm_head = nn.Linear(decoder.config.hidden_size, decoder.config.vocab_size, bias=False)
    products = {name: module for name, module in decoder.named_modules() if isinstance(module, nn.Linear)}
    return {f"{name}.weight": packing.form(f"{name}.weight", each.in_features) for name, each in products.items()}


def _write(decoder: Decoder, name: str, weight: Tensor, packing: Packing | None) -> None:
    home = decoder.get_parameter(name)
    if packing is None:
        home.copy_(weight)
    else:
        packing.write(name, weight, home)


def _check(folder: Path, wanted: Mapping[str, tuple[int, ...]], held: Mapping[str, Stored]) -> None:
    """Each wanted tensor is there, in its shape and a type we read; and nothing else is, but what follows from them."""
    if absent := [name for name in wanted if name not in held]:
        name, others = absent[0], f" (and {len(absent) - 1} others)" if len(absent) > 1 else ""
        raise ModelRefused(
            f"{folder}: {name} of shape {list(wanted[name])} is missing{others}: no safetensors file of this folder has"
            " it, and config.json asks for it"
        )
    for name, shape in wanted.items():
        stored = held[name]
        if stored.shape != shape:
            what = f"has shape {list(stored.shape)}, but config.json asks for {list(shape)}"
            raise ModelRefused(f"{stored.file}: {name} {what}: one of the two is of another model")
        if stored.type not in READ_TYPES:
            raise ModelRefused(f"{stored.file}: {name} is stored as {stored.type}; store one of {sorted(READ_TYPES)}")
    for name in sorted(held.keys() - wanted.keys() - {HEAD}):
        if not name.endswith(DERIVED):
            raise ModelRefused(f"{held[name].file}: {name} has no place in the architecture of config.json")


def _check_head(wanted: Mapping[str, tuple[int, ...]], held: Mapping[str, Stored]) -> None:
    """A tied head may be stored all the same, but then it must be the embedding."""
    if HEAD in wanted or HEAD not in held:
        return
    embedding, head = held[EMBEDDING], held[HEAD]
    if (embedding.type, embedding.shape) == (head.type, head.shape):
        found = {stored.name: weight for stored, weight in tensors([embedding, head])}
        if torch.equal(found[EMBEDDING], found[HEAD]):
            return
    what = f"differs from {EMBEDDING}, though config.json has tie_word_embeddings = True; set it to false"
    raise ModelRefused(f"{head.file}: {HEAD} {what}")


def _reported(folder: Path, taken: Iterable[tuple[Stored, Tensor]], total: int) -> Iterator[tuple[Stored, Tensor]]:
    """The same, with a line in the log for each tenth of a model of `LARGE_BYTES` or more."""
    done = 0
    for stored, weight in taken:
        yield stored, weight
        before, done = done, done + stored.end - stored.begin
        if total >= LARGE_BYTES and done * 10 // total > before * 10 // total:
            _log.info("loading %s: %d %% of %.1f GB", folder, 100 * done // total, total / 1e9)
