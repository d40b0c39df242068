"""Compiler flags by processor: this one, and what it can do as one with less."""

LESSER = {
    "its own": (),
    "without BF16": ("-mno-avx512bf16",),
    "without AVX512": ("-mno-avx512f",),
    "without AVX": ("-march=x86-64",),
}
