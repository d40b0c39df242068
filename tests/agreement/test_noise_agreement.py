"""The noise is the same in plain Python, numpy and torch: integers bit for bit, u exactly, g within the last bits.

torch has no arithmetic on uint64 on every device, so its words are int64 that wrap around, and shifts to the right are
masked to be logical. What differs between libraries is the logarithm, so choices are made from float64 numbers alone:
in float32 a third of the Gumbel numbers would differ.
"""

import numpy as np
import pytest
import torch

from tandem_runtime.domain.noise import Salt, bits, gumbel, key, uniform
from tandem_runtime.engines import noise_words

VOCAB = 49_152
KEYS = [
    (0, 0, Salt.COUPLED, 0),
    (42, 1, Salt.COUPLED, 17),
    (2**63, 7, Salt.DRAFT, 2**20),
    (2**64 - 1, 2**32 - 1, Salt.RESIDUAL, 1),
]
VECTORS = {
    (0, 0, Salt.COUPLED, 0): 0x5F34D1D754F497DB,
    (42, 1, Salt.COUPLED, 17): 0x6AEE000996AF0C28,
    (2**63, 7, Salt.DRAFT, 2**20): 0xBBEB2B996337B6D9,
    (2**64 - 1, 2**32 - 1, Salt.RESIDUAL, 1): 0xE0CDB29A50393F56,
}
"""The exclusive or of the words of all tokens of the vocabulary, by key: version 1 for ever."""


def signed(word: int) -> int:
    """A 64-bit word as torch's int64 holds it."""
    return word - 2**64 if word >= 2**63 else word


def shifted(words: torch.Tensor, by: int) -> torch.Tensor:
    return (words >> by) & ((1 << (64 - by)) - 1)


def mixed(words: torch.Tensor) -> torch.Tensor:
    words = words + signed(0x9E3779B97F4A7C15)
    words = (words ^ shifted(words, 30)) * signed(0xBF58476D1CE4E5B9)
    words = (words ^ shifted(words, 27)) * signed(0x94D049BB133111EB)
    return words ^ shifted(words, 31)


def torch_words(position_key: int) -> torch.Tensor:
    return mixed(mixed(torch.arange(VOCAB)) ^ signed(position_key))


def numpy_words(position_key: int) -> noise_words.Words:
    return noise_words.noise_bits(position_key, np.arange(VOCAB), vocab_size=VOCAB)


@pytest.mark.parametrize("parts", KEYS, ids=str)
def test_words_are_equal_bit_for_bit_in_all_three(parts: tuple[int, int, Salt, int]) -> None:
    position_key = key(*parts)
    by_torch = torch_words(position_key).numpy().view(np.uint64)
    assert np.array_equal(by_torch, numpy_words(position_key))
    assert by_torch[::97].tolist() == [bits(position_key, token) for token in range(0, VOCAB, 97)]


@pytest.mark.parametrize("parts", KEYS, ids=str)
def test_the_words_of_a_whole_vocabulary_never_change(parts: tuple[int, int, Salt, int]) -> None:
    assert int(np.bitwise_xor.reduce(numpy_words(key(*parts)))) == VECTORS[parts]


@pytest.mark.parametrize("parts", KEYS, ids=str)
def test_u_is_equal_exactly_and_g_within_the_last_bits(parts: tuple[int, int, Salt, int]) -> None:
    words = torch_words(key(*parts))
    by_torch = (shifted(words, 12).double() + 0.5) / (1 << 52)
    ours = [int(word) for word in words.numpy().view(np.uint64)[::97]]
    assert by_torch[::97].tolist() == [uniform(word) for word in ours]
    perturbed = -torch.log(-torch.log(by_torch))
    assert perturbed[::97].tolist() == pytest.approx([gumbel(word) for word in ours], rel=1e-13, abs=1e-13)


def test_the_ends_of_u_are_the_same_in_torch() -> None:
    ends = torch.tensor([0, -1])
    assert ((shifted(ends, 12).double() + 0.5) / (1 << 52)).tolist() == [2.0**-53, 1 - 2.0**-53]
