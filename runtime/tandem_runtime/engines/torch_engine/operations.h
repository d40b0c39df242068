/* What one operation of the processor does and compilers would make several of, or do elsewhere than it is told.
 *
 * Knows no rows, no heads and no sizes: a vector is whatever stands in a register. Every kernel takes these from here, so
 * that a product and a sum round alike in all of them.
 */
#pragma once

#define INLINED static inline __attribute__((always_inline))

/* sum += a b, rounded once where an x86 processor can, and twice on all others. */
#ifdef __FMA__
#define ADD_PRODUCT(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#else
#define ADD_PRODUCT(sum, a, b) ((sum) += (a) * (b))
#endif

/* Both products of each word of two bfloat16: the sum is rounded after either. Where no operation does that, words are
 * not left whole. */
#ifdef __AVX512BF16__
enum { WHOLE_WORDS = 1 };
#define ADD_PAIRS(sum, a, b) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#else
enum { WHOLE_WORDS = 0 };
#define ADD_PAIRS(sum, a, b) ADD_PRODUCT(sum, a, b)
#endif

/* Compilers read or spread a vector again for each use of it, and move sums between registers and memory; this forbids
 * it. */
#ifdef __AVX__
#define IN_REGISTER(vector) __asm__("" : "+v"(vector))
#else
#define IN_REGISTER(vector) (void)(vector)
#endif
