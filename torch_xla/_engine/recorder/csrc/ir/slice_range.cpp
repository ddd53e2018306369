#include "ir/slice_range.h"

#include <algorithm>

#include "ir/attribute_hash.h"

namespace torch_xla {

std::optional<Range> range_of(const Op& op, c10::ArrayRef<c10::IValue> arguments, at::IntArrayRef sizes) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t dim = from_start(arguments[op.start - 1].toInt(), rank);
  if (dim < 0 || dim >= rank) {
    return std::nullopt;
  }
  const int64_t size = sizes[dim];
  const auto bound = [&](const c10::IValue& given, int64_t default_value) {
    return std::clamp<int64_t>(given.isNone() ? default_value : from_start(given.toInt(), size), 0, size);
  };
  if (op.range_kind == RangeKind::kSlice) {
    const int64_t begin = bound(arguments[op.start], 0);
    return arguments[op.start + 2].toInt() < 1
               ? std::nullopt
               : std::make_optional(Range{begin, std::max(begin, bound(arguments[op.start + 1], size)), size});
  }
  const int64_t begin = from_start(arguments[op.start].toInt(), size);
  const int64_t length = op.range_kind == RangeKind::kIndex ? 1 : arguments[op.start + 1].toInt();
  return begin < 0 || length < 0 || begin > size - length ? std::nullopt
                                                          : std::make_optional(Range{begin, begin + length, size});
}

void mix_movable_range(Node& node, const Range& range) {
  node.has_start = true;
  node.key.mix(kStart);
  node.key.mix(static_cast<uint64_t>(range.end - range.begin));
}

}  // namespace torch_xla
