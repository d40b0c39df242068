"""Knows the shared chance of a session: uniform and Gumbel numbers that anyone can recompute from a key.

Refuses to know distributions, tokens' meaning, and any generator with a state.

Counter-based noise: a number depends on (version, seed, choice, salt, position, token) and on nothing else, so that
draft, target and a replay on another machine see the same number without talking, in any order, whatever else is in
the batch. The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators"), on integers modulo 2^64:

    mix(z):  z = z + 0x9E3779B97F4A7C15;  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
             z = (z ^ (z >> 27)) * 0x94D049BB133111EB;  result z ^ (z >> 31)
    key    = mix(mix(mix(mix(mix(VERSION) ^ seed) ^ choice) ^ salt) ^ position)
    bits   = mix(key ^ mix(token))
    u      = ((bits >> 12) + 1/2) / 2^52          exact in float64, never 0 and never 1
    g      = -ln(-ln u)                           a standard Gumbel number, between -3.7 and 36.8

argmax over x of (log p(x) + g(x)) has the law p (the Gumbel-max trick), which is what coupled verification rests on.
Integers are equal on every platform and in every array library; u is too; g may differ in the last bit with the
platform's logarithm.
"""

import math
from enum import IntEnum

VERSION = 1
"""Changes with any change of the formulas above, so that a record names the noise that it was made with."""

_WORD = (1 << 64) - 1


class Salt(IntEnum):
    """What a number is for: numbers of different salts are independent. The values are part of the version."""

    COUPLED = 1
    """Gumbel numbers shared by draft and target, one per token."""
    DRAFT = 2
    """How a draft in rejection or block mode draws its proposal."""
    ACCEPT = 3
    """Whether a proposed token is accepted in rejection or block mode."""
    RESIDUAL = 4
    """Which token follows the accepted ones in rejection or block mode."""


def mix(word: int) -> int:
    """The 64-bit mixer; a bijection. mix(0) = 0xE220A8397B1DCDAF."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def key(seed: int, choice: int, salt: Salt, position: int) -> int:
    """The key of one position. `seed` is taken modulo 2^64; `position` is the offset in the output, prompt excluded."""
    word = mix(VERSION)
    for part in (seed, choice, int(salt), position):
        word = mix(word ^ (part & _WORD))
    return word


def bits(position_key: int, token: int) -> int:
    """64 bits for one token (or, where chance is some numbers per position, for one of them)."""
    return mix(position_key ^ mix(token & _WORD))


def uniform(word: int) -> float:
    """The number in (0, 1) that the upper 52 bits of `word` stand for: uniform(0) = 2^-53."""
    return ((word >> 12) + 0.5) / (1 << 52)


def gumbel(word: int) -> float:
    """-ln(-ln u) of the same bits."""
    return -math.log(-math.log(uniform(word)))


def uniform_at(seed: int, choice: int, salt: Salt, position: int, index: int = 0) -> float:
    """The uniform number `index` of a position: for draws, acceptances and residual draws."""
    return uniform(bits(key(seed, choice, salt, position), index))
