"""A folder in the Hugging Face layout -> a ready decoder, or an error that says what is wrong with which file.

Refuses to know engines, and which models there are: `architectures` reads configurations, `shards` reads files.

Everything that can be checked is checked on the headers, before a weight is read: the configuration, and the name,
shape and type of every tensor. Then one tensor after the other is copied out of its file: loading takes the memory of
the model and of no more, and a file that is changed later does not change what is served.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.torch_engine.architectures import read_config
from tandem_runtime.engines.torch_engine.model import Decoder, shape_of
from tandem_runtime.engines.torch_engine.shards import READ_TYPES, Stored, read_headers, tensors

__all__ = ["load_decoder"]

_log = logging.getLogger(__name__)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DERIVED = ".rotary_emb.inv_freq"
"""Old folders hold the angles of rotary positions, which follow from config.json."""

LARGE_BYTES = 1 << 30
"""From here on loading takes long enough for a reader of the log to wonder."""


def load_decoder(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    product: Callable[[str, Tensor], Tensor] | None = None,
) -> Decoder:
    """The model of `folder`, in evaluation mode, its weights converted to `dtype`.

    Where `product` is given, it makes of a product's module name and weight, as stored, what is held in its place.
    Raises ModelRefused, naming the file and the field or tensor, before memory for weights is taken.
    """
    decoder = shape_of(read_config(folder))
    wanted = {name: tuple(weight.shape) for name, weight in decoder.state_dict().items()}
    held = read_headers(folder)
    _check(folder, wanted, held)
    _check_head(wanted, held)
    chosen = [held[name] for name in wanted]
    taken = _reported(folder, tensors(chosen), sum(stored.end - stored.begin for stored in chosen))
    for stored, weight in taken:
        module, _, leaf = stored.name.rpartition(".")
        owner = decoder.get_submodule(module)
        if product is not None and leaf == "weight" and isinstance(owner, nn.Linear):
            kept = product(module, weight.to(device))
        else:
            kept = weight.to(device=device, dtype=dtype, copy=True)
        setattr(owner, leaf, nn.Parameter(kept, requires_grad=False))
    return decoder.eval()


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
