// The sequential search of decoders/seismic_search.py, a batch a call.
//
// A document that an earlier list named is not scored again.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int64_t kStep = 16;  // Entries of a row between looks at its end.

inline float ToFloat(float x) { return x; }
inline float ToFloat(uint8_t x) { return x; }

// Finite float16, exactly: its bits in place, times 2^112.
inline float ToFloat(uint16_t x) {
  uint32_t bits = (x & 0x8000u) << 16 | (x & 0x7fffu) << 13;
  float out;
  std::memcpy(&out, &bits, 4);
  return out * 0x1p112f;
}

// Sums of panel * values and of panel over a row that `vocab` fills up.
template <typename T>
inline void Products(const float* panel, const int32_t* at, const T* values,
                     int64_t width, int32_t vocab, float* sum, float* total) {
  float s = 0, t = 0;
  int64_t i = 0;
  for (; i + kStep <= width && at[i] != vocab; i += kStep) {
#pragma GCC ivdep
    for (int64_t j = 0; j < kStep; ++j) {
      float weight = panel[at[i + j]];
      s += weight * ToFloat(values[i + j]);
      t += weight;
    }
  }
  for (; i < width && at[i] != vocab; ++i) {
    s += panel[at[i]] * ToFloat(values[i]);
    t += panel[at[i]];
  }
  *sum = s;
  *total = t;
}

struct Index {
  int64_t num_docs, width, num_blocks, summary_width;
  int32_t vocab;
  const int32_t *indices, *list_starts, *block_starts, *postings, *summaries;
  const float *least, *step;
  const uint8_t* where;  // Or null.
};

struct Answer {
  int32_t* indices;
  float* scores;
  int64_t k;
  int64_t found = 0;
  float least() const { return scores[k - 1]; }
  bool full() const { return found >= k; }

  void Add(float score, int32_t doc) {
    auto before = [&](int64_t i) {
      return scores[i] > score || (scores[i] == score && indices[i] < doc);
    };
    if (full() && before(k - 1)) return;
    int64_t i = full() ? k - 1 : found++;
    for (; i > 0 && !before(i - 1); --i) {
      scores[i] = scores[i - 1];
      indices[i] = indices[i - 1];
    }
    scores[i] = score;
    indices[i] = doc;
  }
};

template <typename V, typename C>
void Search(const Index& index, const V* values, const C* codes,
            const int32_t* query, const float* weights, int64_t num_entries,
            int64_t cut, float heap_factor, Answer answer, int32_t* num_scored,
            bool* finite) {
  static thread_local std::vector<float> panel;
  static thread_local std::vector<uint32_t> seen;
  static thread_local uint32_t stamp = 0;
  panel.assign(index.vocab + 1, 0.0f);
  if (static_cast<int64_t>(seen.size()) != index.num_docs || ++stamp == 0) {
    seen.assign(index.num_docs, 0);
    stamp = 1;
  }
  std::vector<int32_t> lists;
  for (int64_t i = 0; i < num_entries; ++i) {
    int32_t coord = query[i];
    if (coord < 0 || coord >= index.vocab) continue;
    panel[coord] += weights[i];
    lists.push_back(coord);
  }
  // NaN has no place in an order: the sorts below would be undefined.
  bool broken = false;
  for (int32_t coord : lists) {
    if (std::isfinite(panel[coord])) continue;
    panel[coord] = 0.0f;
    broken = true;
  }
  std::sort(lists.begin(), lists.end(), [&](int32_t a, int32_t b) {
    return panel[a] != panel[b] ? panel[a] > panel[b] : a < b;
  });
  lists.erase(std::unique(lists.begin(), lists.end()), lists.end());
  std::fill(answer.indices, answer.indices + answer.k, -1);
  std::fill(answer.scores, answer.scores + answer.k, kNone);
  *num_scored = 0;
  *finite = !broken;
  std::vector<float> routes;
  std::vector<int32_t> order;
  cut = std::min<int64_t>(cut, lists.size());
  for (int64_t number = 0; number < cut; ++number) {
    int32_t coord = lists[number];
    if (!(panel[coord] > 0)) break;
    int32_t first = index.list_starts[coord];
    int32_t size = index.list_starts[coord + 1] - first;
    routes.resize(size);
    order.resize(size);
    for (int32_t b = 0; b < size; ++b) {
      int64_t block = first + b;
      float sum, total;
      Products(panel.data(), index.summaries + block * index.summary_width,
               codes + block * index.summary_width, index.summary_width,
               index.vocab, &sum, &total);
      routes[b] = sizeof(C) == 1
                      ? index.step[block] * sum + index.least[block] * total
                      : sum;
      order[b] = b;
    }
    if (number == 0) {
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return routes[a] > routes[b];
      });
    }
    for (int32_t b : order) {
      if (answer.full() && routes[b] < heap_factor * answer.least()) continue;
      const int32_t* doc = index.postings + index.block_starts[first + b];
      const int32_t* end = index.postings + index.block_starts[first + b + 1];
      for (const int32_t* next = doc; next < end; ++next) {
        const char* row = reinterpret_cast<const char*>(
            index.indices + int64_t{*next} * index.width);
        for (int64_t i = 0; i < 512 && i < index.width * 4; i += 64) {
          __builtin_prefetch(row + i);
        }
        row = reinterpret_cast<const char*>(values +
                                            int64_t{*next} * index.width);
        __builtin_prefetch(row);
        __builtin_prefetch(row + 64);
      }
      for (; doc < end; ++doc) {
        if (seen[*doc] == stamp) continue;
        seen[*doc] = stamp;
        if (index.where && !index.where[*doc]) continue;
        float score, total;
        int64_t row = int64_t{*doc} * index.width;
        Products(panel.data(), index.indices + row, values + row, index.width,
                 index.vocab, &score, &total);
        ++*num_scored;
        if (!std::isfinite(score)) *finite = false;
        if (!std::isnan(score)) answer.Add(score, *doc);
      }
    }
  }
}

ffi::Error Run(ffi::Buffer<ffi::S32> query, ffi::Buffer<ffi::F32> weights,
               ffi::Buffer<ffi::S32> indices, ffi::AnyBuffer values,
               ffi::Buffer<ffi::S32> list_starts,
               ffi::Buffer<ffi::S32> block_starts,
               ffi::Buffer<ffi::S32> postings, ffi::Buffer<ffi::S32> summaries,
               ffi::AnyBuffer codes, ffi::Buffer<ffi::F32> least,
               ffi::Buffer<ffi::F32> step, ffi::Buffer<ffi::PRED> where,
               ffi::ResultBuffer<ffi::S32> found,
               ffi::ResultBuffer<ffi::F32> scores,
               ffi::ResultBuffer<ffi::S32> num_scored,
               ffi::ResultBuffer<ffi::PRED> finite, int64_t cut,
               float heap_factor) {
  auto shape = indices.dimensions();
  Index index{shape[0],
              shape[1],
              static_cast<int64_t>(least.element_count()),
              summaries.dimensions()[1],
              static_cast<int32_t>(list_starts.element_count() - 1),
              indices.typed_data(),
              list_starts.typed_data(),
              block_starts.typed_data(),
              postings.typed_data(),
              summaries.typed_data(),
              least.typed_data(),
              step.typed_data(),
              where.element_count()
                  ? reinterpret_cast<const uint8_t*>(where.typed_data())
                  : nullptr};
  int64_t num = query.dimensions()[0], entries = query.dimensions()[1];
  int64_t k = found->dimensions()[1];
  auto run = [&](const auto* doc_values, const auto* summary_codes) {
    for (int64_t i = 0; i < num; ++i) {
      Answer answer{found->typed_data() + i * k, scores->typed_data() + i * k,
                    k};
      Search(index, doc_values, summary_codes, query.typed_data() + i * entries,
             weights.typed_data() + i * entries, entries, cut, heap_factor,
             answer, num_scored->typed_data() + i, finite->typed_data() + i);
    }
  };
  auto with_codes = [&](const auto* doc_values) {
    if (codes.element_type() == ffi::U8) {
      run(doc_values, reinterpret_cast<const uint8_t*>(codes.untyped_data()));
    } else {
      run(doc_values, reinterpret_cast<const float*>(codes.untyped_data()));
    }
  };
  if (values.element_type() == ffi::F16) {
    with_codes(reinterpret_cast<const uint16_t*>(values.untyped_data()));
  } else {
    with_codes(reinterpret_cast<const float*>(values.untyped_data()));
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(NnnSeismic, Run,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::PRED>>()
                                  .Attr<int64_t>("cut")
                                  .Attr<float>("heap_factor"));
