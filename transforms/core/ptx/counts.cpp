// What accesses cost: wavefronts of shared memory, sectors of device memory, bytes under way at waits.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {

void Machine::countWait(u64 bytes) {
  const auto pc = static_cast<std::size_t>(current_ - program_.code.data());
  ++counts_.waits[pc];
  counts_.inFlight[pc] += bytes;
}

// Wavefronts: a bank gives one word of four bytes at a time; wide accesses go by halves or quarters of a
// warp.
void Machine::countShared(std::size_t kind, std::span<const std::pair<u16, u64>> accesses, unsigned bytes) {
  const std::size_t group = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  std::array<u64, 128> words{};
  for (std::size_t i = 0; i < accesses.size();) {
    std::size_t used = 0;
    const std::size_t part = accesses[i].first / group;
    for (; i < accesses.size() && accesses[i].first / group == part; ++i)
      for (unsigned b = 0; b < std::max(bytes, 4u); b += 4)
        words[used++] = (accesses[i].second + b) / 4;
    std::sort(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(used));
    const auto end = std::unique(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(used));
    std::array<u32, 32> banks{};
    u32 most = 0;
    for (auto w = words.begin(); w != end; ++w)
      most = std::max(most, ++banks[*w % 32]);
    counts_.wavefronts[kind] += most;
    counts_.idealWavefronts[kind] += (static_cast<u64>(end - words.begin()) + 31) / 32;
  }
}

void Machine::countGlobal(std::size_t kind, std::span<const std::pair<u16, u64>> accesses, unsigned bytes) {
  std::vector<u64> words;
  for (std::size_t i = 0; i < accesses.size();) {
    words.clear();
    const std::size_t warp = accesses[i].first / kWarp;
    for (; i < accesses.size() && accesses[i].first / kWarp == warp; ++i)
      for (unsigned b = 0; b < bytes; b += 2)
        words.push_back((accesses[i].second + b) / 2);
    std::ranges::sort(words);
    words.erase(std::ranges::unique(words).begin(), words.end());
    counts_.neededSectors[kind] += (words.size() + 15) / 16;
    u64 last = ~u64{0};
    for (u64 w : words)
      if (w / 16 != last) {
        last = w / 16;
        ++counts_.sectors[kind];
      }
  }
}

} // namespace superopt::ptx
