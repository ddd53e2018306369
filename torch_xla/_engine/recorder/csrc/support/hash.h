// 128-bit hash of a graph: two lanes of multiply-and-fold, each of which mixes in every word.
#pragma once

#include <cstdint>
#include <string_view>

namespace torch_xla {

struct Key {
  uint64_t a = 0x243F6A8885A308D3ull;
  uint64_t b = 0x13198A2E03707344ull;

  bool operator==(const Key& other) const { return a == other.a && b == other.b; }

  void mix(uint64_t word) {
    a = fold(a ^ word, 0x9E3779B97F4A7C15ull);
    b = fold(b + word, 0xD6E8FEB86659FD93ull) ^ (a << 1);
  }

  void mix(const Key& other) {
    mix(other.a);
    mix(other.b);
  }

  void mix(std::string_view text) {
    mix(static_cast<uint64_t>(text.size()));
    for (char c : text) {
      mix(static_cast<uint64_t>(static_cast<unsigned char>(c)));
    }
  }

 private:
  static uint64_t fold(uint64_t x, uint64_t y) {
    const __uint128_t product = static_cast<__uint128_t>(x) * y;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ x;
  }
};

struct KeyHash {
  size_t operator()(const Key& key) const { return key.a; }
};

}  // namespace torch_xla
