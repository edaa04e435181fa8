// Work dealt to threads in small parts.

#pragma once

#include "lanes.h"
#include "torch.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace nmt {

// Calls f(begin, end) on all threads for parts of the numbers from 0 to count - 1, none but the last smaller than
// `least`. A thread begins with the share that it always has of as many numbers, which its cache may still hold, and
// then helps others: with shares alone, all would wait for a thread that other programs slow down. For work that is
// long enough: training, and in search products in tiles, norms and rotation. at::parallel_for gives the rest of search
// fixed shares.
template <typename F>
void deal(int64_t count, int64_t least, const F& f) {
  constexpr int64_t PARTS = 8;  // of a share
  const int64_t size = std::max(least, ceil_div(count, PARTS * at::get_num_threads())), parts = ceil_div(count, size);
  const int64_t shares = std::min<int64_t>(parts, at::get_num_threads());
  const auto begin_of = [=](int64_t share) { return parts * share / shares; };
  const auto taken = std::make_unique<std::atomic<int64_t>[]>(shares);  // parts of each share
  at::parallel_for(0, shares, 1, [&](int64_t own, int64_t) {
    for (int64_t i = 0; i < shares; ++i) {
      const int64_t share = (own + i) % shares, first = begin_of(share), last = begin_of(share + 1);
      for (int64_t part; (part = first + taken[share].fetch_add(1, std::memory_order_relaxed)) < last;)
        f(part * size, std::min(count, (part + 1) * size));
    }
  });
}

}  // namespace nmt
