// What a fault changes is made undefined: if the block still stores the same, the fault is in dead code.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {

// Whether a fault may have made a register undefined. What is copied or loaded from there, by such a size or
// under such a condition, is undefined in its turn: that the fault stays within bounds is checked without
// poison.
bool Machine::poisoned(const Arg &a, u16 t) const {
  return !faults_.empty() && a.reg >= 0 && tags_[at(a.reg, t)] == Tag::Undefined;
}

bool Machine::sameRegister(std::size_t i, const Machine &other) const {
  if (tags_[i] != other.tags_[i])
    return false;
  switch (tags_[i]) {
  case Tag::Undefined:
    return true;
  case Tag::Bits:
    return values_[i] == other.values_[i];
  case Tag::Address:
  case Tag::Shared:
  case Tag::Tensor:
    return values_[i] == other.values_[i] && highs_[i] == other.highs_[i];
  case Tag::Number:
    return numbers_.get(static_cast<Handle>(values_[i])) ==
           numbers_.get(static_cast<Handle>(other.values_[i]));
  case Tag::Mixed:
    break;
  }
  const auto samePair = [&](u64 a, u64 b) {
    return sameCell(static_cast<Cell>(a), static_cast<Cell>(b)) &&
           sameCell(static_cast<Cell>(a >> 32), static_cast<Cell>(b >> 32));
  };
  return samePair(values_[i], other.values_[i]) && samePair(highs_[i], other.highs_[i]);
}

// Makes undefined what the `other` machine holds differently.
void Machine::poison(const Machine &other) {
  for (std::size_t i = 0; i < tags_.size(); ++i)
    if (!sameRegister(i, other)) {
      tags_[i] = Tag::Undefined;
      ++differences_;
    }
  for (std::size_t i = 0; i < shared_.size(); ++i)
    if (shared_[i].inFlight != other.shared_[i].inFlight ||
        !sameCell(shared_[i].held, other.shared_[i].held)) {
      shared_[i].held = 0;
      ++differences_;
    }
  if (tensor_.size() != other.tensor_.size())
    throw Unknown("a fault that touches tensor memory for the first time");
  for (std::size_t i = 0; i < tensor_.size(); ++i) {
    TensorCell &c = tensor_[i];
    if (!sameCell(c.low, other.tensor_[i].low) || !sameCell(c.high, other.tensor_[i].high)) {
      c.low = c.high = 0;
      ++differences_;
    }
  }
  const auto same = [](const auto &a, const auto &b) {
    return a.size() == b.size() && std::ranges::all_of(a, [&](const auto &entry) {
             const auto found = b.find(entry.first);
             return found != b.end() && found->second.value == entry.second.value;
           });
  };
  for (std::size_t i = 0; i < stored_.size(); ++i)
    if (!same(stored_[i], other.stored_[i]))
      throw Unknown("a fault that changes what is stored in device memory for a while");
}

} // namespace superopt::ptx
