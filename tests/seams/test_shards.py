"""Files of weights that are cut short, contradict themselves or lie are refused by name, with no number looked at."""

import json
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.seams.model_folders import saved_reference

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.torch_engine import loading, shards
from tandem_runtime.engines.torch_engine.loading import load_decoder

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved_reference(tmp_path, "Qwen3ForCausalLM", tie_word_embeddings=True)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    saved_reference(tmp_path, "LlamaForCausalLM", max_shard_size="120KB")
    assert len(list(tmp_path.glob("model-0000*.safetensors"))) >= 3
    return tmp_path


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a file to take a tensor out of it fails this test."""

    def opened(path: Path, **_: object) -> None:
        pytest.fail(f"{path} was opened for its numbers")

    monkeypatch.setattr(shards, "safe_open", opened)


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and numbers."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def joined(path: Path, header: object, numbers: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + numbers)


Change = Callable[[dict[str, Any]], object]


def entry(name: str, **changes: object) -> Change:
    return lambda header: header | {name: header[name] | changes}


def moved(name: str, by: int) -> Change:
    return lambda header: entry(name, data_offsets=[at + by for at in header[name]["data_offsets"]])(header)


HEADERS: dict[str, tuple[Change, str]] = {
    "a tensor on another": (moved(NORM, -4), rf"{NORM} begins at byte \d+, on .* which ends at \d+; fetch it again"),
    "a gap before a tensor": (moved(NORM, 4), rf"{NORM} begins at byte \d+, apart from"),
    "an end before the begin": (entry(NORM, data_offsets=[8, 4]), rf"{NORM} lies at bytes 8 to 4"),
    "a begin before the file": (entry(NORM, data_offsets=[-256, 0]), rf"{NORM} lies at bytes -256 to 0"),
    "more bytes than the shape takes": (entry(NORM, shape=[2]), rf"{NORM} lies at bytes .*F32 \[2\] takes 8"),
    "a shape without bounds": (entry(NORM, shape=[2**62, 2**62]), rf"{NORM} lies at bytes .* takes \d+"),
    "a shape of a thousand sizes": (entry(NORM, shape=[1] * 1000), f"{NORM} = .*needs dtype, shape"),
    "a negative size": (entry(NORM, shape=[-64]), f"{NORM} = .*needs dtype, shape"),
    "a size that is no number": (entry(NORM, shape=["64"]), f"{NORM} = .*needs dtype, shape"),
    "one offset": (entry(NORM, data_offsets=[0]), f"{NORM} = .*needs dtype, shape and data_offsets"),
    "no entry": (lambda header: header | {NORM: None}, f"{NORM} = None"),
    "a type unheard of": (entry(NORM, dtype="F8_E5M2"), f"{NORM} is stored as F8_E5M2; store one of"),
    "whole numbers": (entry(NORM, dtype="I32"), f"{NORM} is stored as I32; store one of"),
    "another shape of the same size": (entry(NORM, shape=[8, 8]), rf"{NORM} has shape \[8, 8\].* asks for \[64\]"),
    "nothing": (lambda header: {}, r"speaks of bytes 0 to 0, but \d+ bytes follow it"),
    "a list": (lambda header: [], "the header holds list, not an object"),
    "no JSON": (lambda header: b"{" * 64, "the header is no readable JSON"),
    "brackets without end": (lambda header: b"[" * 200_000, "the header is no readable JSON"),
    "bytes that are no text": (lambda header: b"\xff" * 64, "the header is no readable JSON"),
    "a name that stands twice": (lambda header: b'{"a": 1, "b": 2, "a": 3}', "a stands twice"),
    "a tensor too many": (lambda header: header | {"model.extra": header[NORM]}, "model.extra begins at byte"),
    "a tensor under another name": (
        lambda header: {name.replace("model.norm", "model.gone"): value for name, value in header.items()},
        rf"{NORM} of shape \[64\] is missing",
    ),
}


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(("change", "message"), HEADERS.values(), ids=HEADERS.keys())
def test_a_header_that_contradicts_itself_is_refused_unread(change: Change, message: str, folder: Path) -> None:
    header, numbers = split(folder / FILE)
    joined(folder / FILE, change(header), numbers)
    with pytest.raises(ModelRefused, match=message) as caught:
        load_decoder(folder)
    assert str(folder) in str(caught.value)


LENGTHS = {
    "an empty file": b"",
    "half a length": b"\x08\x00",
    "a length beyond the file": struct.pack("<Q", 1000) + b"{}",
    "a length beyond memory": struct.pack("<Q", 2**64 - 1) + b"{}",
    "a length just beyond the limit": struct.pack("<Q", shards.MOST_HEADER_BYTES + 1) + b"{}",
}


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("content", LENGTHS.values(), ids=LENGTHS.keys())
def test_a_header_of_a_wrong_length_is_refused_unread(content: bytes, folder: Path) -> None:
    (folder / FILE).write_bytes(content)
    with pytest.raises(ModelRefused, match=r"its header would have \d+ bytes, but the file has \d+"):
        load_decoder(folder)


@pytest.mark.usefixtures("unread")
def test_a_header_of_the_whole_of_a_huge_file_is_refused_unread(folder: Path) -> None:
    """A sparse file of a terabyte takes no room, and its header would take a terabyte of memory."""
    with (folder / FILE).open("wb") as file:
        file.write(struct.pack("<Q", 2**40 - 8))
        file.truncate(2**40)
    with pytest.raises(ModelRefused, match="1099511627768 bytes, but the file has 1099511627776 and a header 16777216"):
        load_decoder(folder)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("left", [1, 100])
def test_a_file_cut_short_or_too_long_is_refused_unread(left: int, folder: Path) -> None:
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole[:-left])
    with pytest.raises(ModelRefused, match="the file is cut short: fetch it again"):
        load_decoder(folder)
    (folder / FILE).write_bytes(whole + b"\0" * left)
    with pytest.raises(ModelRefused, match="the file is not what it says: fetch it again"):
        load_decoder(folder)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_header_with_one_byte_changed_is_refused_or_says_the_same(data: st.DataObject, folder: Path) -> None:
    """Whatever the byte: no other error comes, and no other weights."""
    path = folder / FILE
    kept = path.with_suffix(".kept")
    if not kept.exists():
        kept.write_bytes(path.read_bytes())
    whole = bytearray(kept.read_bytes())
    (length,) = struct.unpack("<Q", whole[:8])
    whole[data.draw(st.integers(0, 7 + length))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    try:
        found = load_decoder(folder).state_dict()
    except ModelRefused:
        return
    wanted = load_file(kept)
    assert all(torch.equal(weight, wanted[name]) for name, weight in found.items())


@pytest.mark.usefixtures("unread")
def test_missing_files_are_all_named_before_one_is_read(sharded: Path) -> None:
    gone = sorted(sharded.glob("model-0000*.safetensors"))[1:3]
    for path in gone:
        path.unlink()
    with pytest.raises(ModelRefused, match=f"{INDEX} names {gone[0].name}, {gone[1].name}, which this folder lacks"):
        load_decoder(sharded)


@pytest.mark.usefixtures("unread")
def test_a_fault_in_the_last_file_is_found_before_the_first_is_read(sharded: Path) -> None:
    last = sorted(sharded.glob("model-0000*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(ModelRefused, match=f"{last.name}: .*cut short"):
        load_decoder(sharded)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("place", ["../elsewhere.safetensors", "/etc/passwd", ".", "..", "", 3, None])
def test_an_index_names_files_beside_it_only(place: object, sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"][NORM] = place
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelRefused, match=rf"weight_map\.{NORM} = .*: give the name of a file|lacks"):
        load_decoder(sharded)


@pytest.mark.usefixtures("unread")
def test_a_tensor_that_is_in_another_file_than_the_index_says_is_refused(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"][NORM] = index["weight_map"][EMBEDDING]
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelRefused, match=f"{NORM} is not in this file, where {INDEX} places it"):
        load_decoder(sharded)


def test_a_copy_of_a_tied_head_and_old_angles_are_passed_over(folder: Path) -> None:
    held = load_file(folder / FILE)
    angles = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file(held | {"lm_head.weight": held[EMBEDDING].clone()} | angles, folder / FILE)
    assert set(load_decoder(folder).state_dict()) == set(held)


HEADS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "other numbers": lambda embedding: embedding + 1,
    "another type": lambda embedding: embedding.to(torch.bfloat16),
    "another shape": lambda embedding: embedding[1:].clone(),
}


@pytest.mark.parametrize("made", HEADS.values(), ids=HEADS.keys())
def test_a_tied_head_that_is_not_the_embedding_is_refused(
    made: Callable[[torch.Tensor], torch.Tensor], folder: Path
) -> None:
    held = load_file(folder / FILE)
    save_file(held | {"lm_head.weight": made(held[EMBEDDING])}, folder / FILE)
    with pytest.raises(ModelRefused, match=r"lm_head\.weight differs from .*tie_word_embeddings = True"):
        load_decoder(folder)


def test_what_is_served_does_not_change_with_the_file(folder: Path) -> None:
    decoder = load_decoder(folder)
    before = decoder.model.norm.weight.clone()
    with (folder / FILE).open("r+b") as file:
        file.seek(-20_000, 2)
        file.write(b"\x7f" * 20_000)
    assert torch.equal(decoder.model.norm.weight, before)


def test_loading_a_large_model_says_how_far_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load_decoder(folder)
        assert caplog.messages == []
        monkeypatch.setattr(loading, "LARGE_BYTES", 1000)
        load_decoder(folder)
    assert caplog.messages[-1] == f"loading {folder}: 100 % of 0.0 GB"
    assert 5 <= len(caplog.messages) <= 10
