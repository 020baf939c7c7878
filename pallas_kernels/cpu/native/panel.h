// Some rows of an operand in float32, where vectors can be read from any column.
#pragma once

#include <type_traits>

#include "parallel.h"
#include "simd.h"

namespace sparsemlp {

// Whether rows so far apart keep falling into the same few sets of a cache.
inline bool aliases(int64_t stride) { return stride % 1024 == 0; }

// The rows [n, width] of an operand; copied where they are not float32 or stand badly in memory.
template <typename T>
class Rows {
 public:
  // `vector_reads` says that whole vectors will be read from columns that need not begin one.
  Rows(const T* data, int64_t width, bool vector_reads)
      : data_(data), width_(width),
        copies_(!std::is_same_v<T, float> || aliases(width) || vector_reads),
        stride_(copies_ ? round_up(width, kLanes) + kLanes : width) {}

  int64_t stride() const { return stride_; }
  const T* row(int64_t first) const { return data_ + first * width_; }

  const float* open(int64_t first, int64_t n, Buffer* buffer) const {
    if (!copies_) return reinterpret_cast<const float*>(row(first));
    float* copy = buffer->at_least((n + 1) * stride_);
    for (int64_t r = 0; r < n; ++r) widen_row(row(first + r), width_, copy + r * stride_);
    return copy;
  }

 private:
  const T* data_;
  int64_t width_;
  bool copies_;
  int64_t stride_;
};

constexpr int64_t kPanelBytes = 300 << 10;     // of a product, within the second-level cache
constexpr int64_t kFarPanelBytes = 6 << 20;  // where much else is read beside it

// How many rows, a multiple of a tile's, make a panel whose operands take so many bytes.
inline int64_t panel_rows(int64_t floats_per_row, int64_t bytes, int64_t most_tiles) {
  const int64_t tiles = bytes / (4 * kTileRows * std::max<int64_t>(1, floats_per_row));
  return kTileRows * std::max<int64_t>(1, std::min(most_tiles, tiles));
}

// The same, but more rows where every panel reads and writes so many floats besides, of kernels and
// of their gradients, that it takes less time to find the rows themselves farther away.
inline int64_t panel_rows_beside(int64_t floats_per_panel, int64_t floats_per_row, int64_t bytes,
                                 int64_t most_tiles) {
  constexpr int64_t kPasses = 8;  // over the rows of a panel
  const int64_t tiles = std::min<int64_t>(
      192 / kTileRows,
      floats_per_panel / (kPasses * kTileRows * std::max<int64_t>(1, floats_per_row)));
  return std::max(panel_rows(floats_per_row, bytes, most_tiles),
                  panel_rows(floats_per_row, kFarPanelBytes, tiles));
}

}  // namespace sparsemlp
