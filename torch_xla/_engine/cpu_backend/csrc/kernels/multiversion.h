// Compiles loops for several instruction sets; the dynamic loader selects one when the library is loaded.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define TORCH_XLA_MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TORCH_XLA_MULTIVERSION
#endif
