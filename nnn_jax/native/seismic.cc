// The sequential search of decoders/seismic_search.py, a batch a call.
//
// A document that an earlier list named is not scored again.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#ifdef __AVX512BW__
#include <immintrin.h>
#endif

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

// The inner product of a dense query with a row that `vocab` fills up.
template <typename I, typename V>
inline float Product(const float* panel, const I* at, const V* values,
                     int64_t width, int64_t vocab) {
  float sum = 0;
  for (int64_t i = 0; i < width && at[i] != vocab; i += kStep) {
    const int64_t num = std::min(kStep, width - i);
#pragma GCC ivdep
    for (int64_t j = i; j < i + num; ++j) sum += panel[at[j]] * ToFloat(values[j]);
  }
  return sum;
}

#ifdef __AVX512BW__
inline float Product(const float* panel, const uint16_t* at,
                     const uint16_t* values, int64_t width, int64_t vocab) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < width && at[i] != vocab; i += 16) {
    const __mmask16 in =
        width - i >= 16 ? 0xffff : (uint32_t{1} << (width - i)) - 1;
    const __m512i coords =
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(in, at + i));
    const __m512 entries = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(in, values + i));
    sum = _mm512_fmadd_ps(_mm512_i32gather_ps(coords, panel, 4), entries, sum);
  }
  return _mm512_reduce_add_ps(sum);
}
#endif

// Reads ahead. Loads, since prefetches hardly shortened the wait where this was
// measured (Zen 4, a virtual machine), as if dropped where the TLB has no entry.
inline void Touch(const void* start, int64_t bytes) {
  const volatile char* line = static_cast<const volatile char*>(start);
  for (int64_t i = 0; i < bytes; i += 64) (void)line[i];
}

template <typename I, typename V, typename C>
struct Index {
  int64_t num_docs, width, vocab, bucket_bits, num_buckets;
  const I* indices;
  const V* values;
  const int32_t *list_starts, *block_starts, *postings, *bucket_starts;
  const I *entry_coords, *entry_blocks;
  const C* entry_codes;
  const float *least, *step;
  const uint8_t* where;  // Or null.

  float Score(const float* panel, int32_t doc) const {
    return Product(panel, indices + doc * width, values + doc * width, width,
                   vocab);
  }

  const int32_t* Bucket(int32_t list, int32_t coord) const {
    return bucket_starts + list * num_buckets + (coord >> bucket_bits);
  }

  // The start of a row; what follows comes as it is read.
  void TouchDocument(int32_t doc) const {
    Touch(indices + doc * width, std::min<int64_t>(width * sizeof(I), 256));
    Touch(values + doc * width, std::min<int64_t>(width * sizeof(V), 256));
  }

  // What Route reads.
  void TouchEntries(int32_t list, int32_t coord) const {
    const int32_t* bucket = Bucket(list, coord);
    if (bucket[0] == bucket[1]) return;
    Touch(entry_coords + bucket[0], 1);
    Touch(entry_blocks + bucket[0], 1);
    Touch(entry_codes + bucket[0], 1);
  }

  // Adds a query weight times the entries of a coordinate to a list's blocks.
  void Route(int32_t list, int32_t coord, float weight, float* routes) const {
    const int32_t* bucket = Bucket(list, coord);
    const I* start = entry_coords + bucket[0];
    const int64_t size = bucket[1] - bucket[0];
    int64_t first = 0;
    for (int64_t i = 0; i < size; ++i) first += start[i] < coord;
    for (int64_t i = first; i < size && start[i] == coord; ++i) {
      const int64_t block = entry_blocks[bucket[0] + i];
      float entry = ToFloat(entry_codes[bucket[0] + i]);
      if (sizeof(C) == 1) {
        const int64_t at = list_starts[list] + block;
        entry = least[at] + step[at] * entry;
      }
      routes[block] += weight * entry;
    }
  }
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

// What one query leaves for the next.
struct Scratch {
  std::vector<float> panel, routes;  // The panel is zero between queries.
  std::vector<uint32_t> seen;        // The stamp of the query that saw it.
  uint32_t stamp = 0;
  std::vector<int32_t> coords, lists, order, fresh, later;
};

template <typename I, typename V, typename C>
void Search(const Index<I, V, C>& index, Scratch& s, const int32_t* query,
            const float* weights, int64_t num_entries, int64_t cut,
            float heap_factor, Answer answer, int32_t* num_scored,
            bool* finite) {
  float* panel = s.panel.data();
  if (++s.stamp == 0) {
    std::fill(s.seen.begin(), s.seen.end(), 0);
    s.stamp = 1;
  }
  s.coords.clear();
  for (int64_t i = 0; i < num_entries; ++i) {
    const int32_t coord = query[i];
    if (coord < 0 || coord >= index.vocab) continue;
    panel[coord] += weights[i];
    s.coords.push_back(coord);
  }
  std::sort(s.coords.begin(), s.coords.end());
  s.coords.erase(std::unique(s.coords.begin(), s.coords.end()), s.coords.end());
  // NaN has no place in an order: the sorts below would be undefined.
  *finite = true;
  for (int32_t coord : s.coords) {
    if (std::isfinite(panel[coord])) continue;
    panel[coord] = 0.0f;
    *finite = false;
  }
  s.lists = s.coords;
  cut = std::min<int64_t>(cut, s.lists.size());
  std::partial_sort(
      s.lists.begin(), s.lists.begin() + cut, s.lists.end(),
      [&](int32_t a, int32_t b) {
        return panel[a] != panel[b] ? panel[a] > panel[b] : a < b;
      });
  std::fill(answer.indices, answer.indices + answer.k, -1);
  std::fill(answer.scores, answer.scores + answer.k, kNone);
  *num_scored = 0;
  for (int64_t number = 0; number < cut; ++number) {
    const int32_t list = s.lists[number];
    if (!(panel[list] > 0)) break;
    const int32_t first = index.list_starts[list];
    const int32_t size = index.list_starts[list + 1] - first;
    s.routes.assign(size, 0.0f);
    s.order.resize(size);
    for (int32_t coord : s.coords) index.TouchEntries(list, coord);
    for (int32_t coord : s.coords) {
      index.Route(list, coord, panel[coord], s.routes.data());
    }
    const float* routes = s.routes.data();
    std::iota(s.order.begin(), s.order.end(), 0);
    if (number == 0) {
      std::sort(s.order.begin(), s.order.end(), [&](int32_t a, int32_t b) {
        return routes[a] != routes[b] ? routes[a] > routes[b] : a < b;
      });
    }
    auto hopeless = [&](int32_t b) {
      return answer.full() && routes[b] < heap_factor * answer.least();
    };
    auto next = s.order.begin();
    // The next block, or -1; its new documents are on their way.
    auto fetch = [&](std::vector<int32_t>& docs) {
      docs.clear();
      while (next != s.order.end() && hopeless(*next)) ++next;
      if (next == s.order.end()) return -1;
      const int32_t b = *next++;
      for (int64_t i = index.block_starts[first + b];
           i < index.block_starts[first + b + 1]; ++i) {
        const int32_t doc = index.postings[i];
        if (s.seen[doc] == s.stamp) continue;
        s.seen[doc] = s.stamp;
        docs.push_back(doc);
        index.TouchDocument(doc);
      }
      return b;
    };
    for (int32_t b = fetch(s.fresh), after; b >= 0; b = after) {
      after = fetch(s.later);
      // Once more: the answer is better than when it was fetched.
      if (hopeless(b)) {
        for (int32_t doc : s.fresh) s.seen[doc] = s.stamp - 1;
        s.fresh.clear();
      }
      for (int32_t doc : s.fresh) {
        if (index.where && !index.where[doc]) continue;
        const float score = index.Score(panel, doc);
        if (!std::isfinite(score)) *finite = false;
        if (!std::isnan(score)) answer.Add(score, doc);
        ++*num_scored;
      }
      std::swap(s.fresh, s.later);
    }
  }
  for (int32_t coord : s.coords) panel[coord] = 0.0f;
}

ffi::Error Run(ffi::Buffer<ffi::S32> query, ffi::Buffer<ffi::F32> weights,
               ffi::AnyBuffer indices, ffi::AnyBuffer values,
               ffi::Buffer<ffi::S32> list_starts,
               ffi::Buffer<ffi::S32> block_starts,
               ffi::Buffer<ffi::S32> postings,
               ffi::Buffer<ffi::S32> bucket_starts,
               ffi::AnyBuffer entry_coords, ffi::AnyBuffer entry_blocks,
               ffi::AnyBuffer entry_codes, ffi::Buffer<ffi::F32> least,
               ffi::Buffer<ffi::F32> step, ffi::Buffer<ffi::PRED> where,
               ffi::ResultBuffer<ffi::S32> found,
               ffi::ResultBuffer<ffi::F32> scores,
               ffi::ResultBuffer<ffi::S32> num_scored,
               ffi::ResultBuffer<ffi::PRED> finite, int64_t cut,
               float heap_factor, int64_t bucket_bits) {
  static thread_local Scratch scratch;
  const int64_t num_docs = indices.dimensions()[0];
  const int64_t vocab = list_starts.element_count() - 1;
  scratch.panel.resize(std::max<int64_t>(scratch.panel.size(), vocab + 1));
  scratch.seen.resize(std::max<int64_t>(scratch.seen.size(), num_docs));
  const int64_t num = query.dimensions()[0], entries = query.dimensions()[1];
  const int64_t k = found->dimensions()[1];
  auto run = [&]<typename I, typename V, typename C>(I, V, C) {
    auto data = [](const auto& buffer, auto kind) {
      return static_cast<const decltype(kind)*>(buffer.untyped_data());
    };
    const Index<I, V, C> index{
        num_docs,
        indices.dimensions()[1],
        vocab,
        bucket_bits,
        (static_cast<int64_t>(bucket_starts.element_count()) - 1) / vocab,
        data(indices, I()),
        data(values, V()),
        list_starts.typed_data(),
        block_starts.typed_data(),
        postings.typed_data(),
        bucket_starts.typed_data(),
        data(entry_coords, I()),
        data(entry_blocks, I()),
        data(entry_codes, C()),
        least.typed_data(),
        step.typed_data(),
        where.element_count() ? data(where, uint8_t()) : nullptr};
    for (int64_t i = 0; i < num; ++i) {
      const Answer answer{found->typed_data() + i * k,
                          scores->typed_data() + i * k, k};
      Search(index, scratch, query.typed_data() + i * entries,
             weights.typed_data() + i * entries, entries, cut, heap_factor,
             answer, num_scored->typed_data() + i, finite->typed_data() + i);
    }
  };
  auto with_codes = [&](auto i, auto v) {
    entry_codes.element_type() == ffi::U8 ? run(i, v, uint8_t())
                                          : run(i, v, float());
  };
  auto with_values = [&](auto i) {
    values.element_type() == ffi::F16 ? with_codes(i, uint16_t())
                                      : with_codes(i, float());
  };
  indices.element_type() == ffi::U16 ? with_values(uint16_t())
                                     : with_values(int32_t());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(NnnSeismic, Run,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::PRED>>()
                                  .Attr<int64_t>("cut")
                                  .Attr<float>("heap_factor")
                                  .Attr<int64_t>("bucket_bits"));
