"""What a request asks for, where it leaves out what its model's makers advise."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.seams.tokenizer_folders import byte_level_folder

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.domain.tokens import SamplingDefaults
from tandem_runtime.gateway.intake import read_completion
from tandem_runtime.gateway.schema import CompletionRequest
from tandem_runtime.testing import TableTokenizer
from tandem_runtime.tokenizer import FolderTokenizer

ADVISED = SamplingDefaults(temperature=0.7, top_k=20, top_p=0.8, min_p=0.1, repetition_penalty=1.05)


class Advising(TableTokenizer):
    @property
    def defaults(self) -> SamplingDefaults:
        return ADVISED


def understood(**fields: Any) -> SamplingDefaults:
    request = CompletionRequest.model_validate({"model": "m", "prompt": "a", **fields})
    read = read_completion(request, Advising([b"a"]), chance=1).parameters
    return SamplingDefaults(**{name: getattr(read, name) for name in SamplingDefaults.__slots__})


def test_what_is_left_out_is_as_advised_and_null_is_left_out() -> None:
    assert understood() == ADVISED
    assert understood(temperature=None, top_k=None) == ADVISED


def test_what_is_asked_for_is_kept_though_it_be_nothing() -> None:
    off: dict[str, Any] = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    assert understood(**off) == SamplingDefaults(temperature=0.0)


@pytest.mark.parametrize(
    ("seed", "taken"),
    [(None, 77), (-1, 77), (-2, 2**64 - 2), (-(2**63), 2**63), (0, 0), (2**64 - 1, 2**64 - 1)],
)
def test_a_seed_is_its_64_bits_and_minus_one_asks_for_one_to_be_drawn(seed: int | None, taken: int) -> None:
    request = CompletionRequest.model_validate({"model": "m", "prompt": "a", "seed": seed})
    assert read_completion(request, Advising([b"a"]), chance=77).parameters.seed == taken


VALUES = (-1, 0, 0.5, 1, 2, 2.5, 10, 10.5, 2**31 - 1, 2**31, 10**400, 1e999)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", SamplingDefaults.__slots__)
def test_a_model_may_advise_what_a_request_may_ask_for(name: str, value: float, tmp_path: Path) -> None:
    """The bounds are written twice: for requests in the schema, for folders beside the tokenizer."""
    byte_level_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    try:
        expected = getattr(understood(**{name: value}), name)
    except ValidationError:
        with pytest.raises(ModelRefused, match=name):
            FolderTokenizer(tmp_path)
    else:
        assert getattr(FolderTokenizer(tmp_path).defaults, name) == expected
