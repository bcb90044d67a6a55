// The loop of solvers/frank_wolfe.py for K = rows rows^T.
//
// A step there is a product with rows that the caches hold, and a dozen small
// operations whose starts cost as much again. Here those are loops, and the
// rows are read forwards and backwards in turn, so that what the last product
// left in the nearer cache is read first.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kRows = 8;  // Products at once: as many chains of sums.
constexpr int64_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(4 * kLanes)));

inline Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

inline float Sum(Lanes x) {
  // Halves, by which the compiler stays in registers.
  const auto eight =
      __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                    __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

// In the order of the values; 0, below all others, for what may not be chosen.
inline uint32_t Key(float value, bool allowed) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = value == 0.0f ? 0 : bits;  // -0 and 0 are alike.
  const uint32_t negative = -(bits >> 31);
  const uint32_t key = bits ^ (negative | 0x80000000u);
  return allowed & (value == value) ? key : 0;
}

int64_t CountAtLeast(const std::vector<uint32_t>& keys, uint32_t least) {
  int32_t count = 0;
  for (const uint32_t key : keys) count += key >= least;
  return count;
}

struct Problem {
  int64_t num, dim, k;
  float loading, penalty;
  const float *gain, *rows, *diagonal;
  const bool *finite, *allowed;
};

class FrankWolfe {
 public:
  explicit FrankWolfe(const Problem& problem)
      : p_(problem),
        slope_(p_.num),
        moved_(p_.num),
        vertex_(p_.num),
        total_(p_.dim),
        keys_(p_.num) {}

  struct End {
    float bound;
    int32_t num_steps;
    bool stationary;
  };

  // From x, which ends as the solution, with product = K x.
  End Maximize(float* x, float* product, int64_t most_steps, float tol) {
    Multiply(x, product);
    End end = {std::numeric_limits<float>::infinity(), 0, false};
    while (true) {
      const float gap = Look(x, product, tol, &end);
      if (end.stationary || end.num_steps >= most_steps) return end;
      Step(gap, x, product);
      ++end.num_steps;
    }
  }

 private:
  // total = rows^T weights.
  void SetTotal(const float* weights) {
    members_.clear();
    for (int64_t i = 0; i < p_.num; ++i) {
      if (weights[i] != 0.0f && p_.finite[i]) members_.push_back(i);
    }
    std::fill(total_.begin(), total_.end(), 0.0f);
    const int64_t num = members_.size();
    int64_t m = 0;
    for (; m + 4 <= num; m += 4) AddRows<4>(weights, m);
    for (; m < num; ++m) AddRows<1>(weights, m);
  }

  template <int64_t kNum>
  void AddRows(const float* weights, int64_t first) {
    const float* rows[kNum];
    float by[kNum];
    for (int64_t r = 0; r < kNum; ++r) {
      rows[r] = p_.rows + members_[first + r] * p_.dim;
      by[r] = weights[members_[first + r]];
    }
    float* total = total_.data();
#pragma GCC ivdep
    for (int64_t j = 0; j < p_.dim; ++j) {
      float sum = 0.0f;
      for (int64_t r = 0; r < kNum; ++r) sum += by[r] * rows[r][j];
      total[j] += sum;
    }
  }

  // out = rows rows^T weights.
  void Multiply(const float* weights, float* out) {
    SetTotal(weights);
    const int64_t num_blocks = (p_.num + kRows - 1) / kRows;
    for (int64_t b = 0; b < num_blocks; ++b) {
      const int64_t block = backwards_ ? num_blocks - 1 - b : b;
      const int64_t first = block * kRows;
      if (first + kRows <= p_.num) {
        Products<kRows>(first, out);
      } else {
        for (int64_t i = first; i < p_.num; ++i) Products<1>(i, out);
      }
    }
    backwards_ = !backwards_;
    for (int64_t i = 0; i < p_.num; ++i) {
      if (!p_.finite[i]) out[i] = 0.0f;
    }
  }

  template <int64_t kNum>
  void Products(int64_t first, float* out) const {
    const float* rows = p_.rows + first * p_.dim;
    Lanes sums[kNum] = {};
    int64_t j = 0;
    for (; j + kLanes <= p_.dim; j += kLanes) {
      const Lanes total = Load(total_.data() + j);
#pragma GCC unroll 8
      for (int64_t r = 0; r < kNum; ++r) {
        sums[r] += Load(rows + r * p_.dim + j) * total;
      }
    }
    for (int64_t r = 0; r < kNum; ++r) {
      float sum = Sum(sums[r]);
      const float* row = rows + r * p_.dim;
      for (int64_t l = j; l < p_.dim; ++l) sum += row[l] * total_[l];
      out[first + r] = sum;
    }
  }

  // The slope at x and the vertex it points to; returns the gap.
  float Look(const float* x, const float* product, float tol, End* end) {
    const float rho = p_.loading;
    float value = 0.0f;
    for (int64_t i = 0; i < p_.num; ++i) {
      const float own = p_.diagonal[i];
      slope_[i] = p_.gain[i] + p_.penalty * (own * (1 - rho * (1 - 2 * x[i])) -
                                             2 * product[i]);
      value += x[i] * (p_.gain[i] + p_.penalty * (own * (1 - rho * (1 - x[i])) -
                                                  product[i]));
    }
    SetVertex();
    float gap = 0.0f, scale = 0.0f;
    for (int64_t i = 0; i < p_.num; ++i) {
      gap += slope_[i] * (vertex_[i] - x[i]);
      scale += std::abs(slope_[i]) * (vertex_[i] + x[i]);
    }
    end->bound = std::min(end->bound, value + gap);
    end->stationary = gap <= tol * scale;
    return gap;
  }

  // The k largest slopes of those allowed; the first of equal ones.
  void SetVertex() {
    for (int64_t i = 0; i < p_.num; ++i) {
      keys_[i] = Key(slope_[i], p_.allowed[i]);
    }
    int64_t count = CountAtLeast(keys_, 1);
    const int64_t k = std::min(p_.k, count);
    // Of `count` keys >= least, and fewer than k >= beyond, until least is the
    // k-th largest or has no more above it.
    uint32_t least = 1, beyond = 0xffffffffu;
    while (count > k && beyond - least > 1) {
      const uint32_t middle = least + (beyond - least) / 2;
      const int64_t above = CountAtLeast(keys_, middle);
      if (above >= k) {
        least = middle;
        count = above;
      } else {
        beyond = middle;
      }
    }
    int64_t ties = k - CountAtLeast(keys_, least + 1);
    for (int64_t i = 0; i < p_.num; ++i) {
      vertex_[i] = keys_[i] > least || (keys_[i] == least && ties-- > 0);
    }
  }

  void Step(float gap, float* x, float* product) {
    Multiply(vertex_.data(), moved_.data());
    float bend = 0.0f;
    for (int64_t i = 0; i < p_.num; ++i) {
      const float d = vertex_[i] - x[i];
      bend += d * (p_.loading * p_.diagonal[i] * d - (moved_[i] - product[i]));
    }
    bend *= 2 * p_.penalty;
    const float length = bend < 0 ? gap / -bend : 1.0f;
    if (length >= 1.0f) {  // Lands on the vertex to the last bit.
      std::copy(vertex_.begin(), vertex_.end(), x);
      std::copy(moved_.begin(), moved_.end(), product);
      return;
    }
    for (int64_t i = 0; i < p_.num; ++i) {
      x[i] += length * (vertex_[i] - x[i]);
      product[i] += length * (moved_[i] - product[i]);
    }
  }

  const Problem p_;
  std::vector<float> slope_, moved_, vertex_, total_;
  std::vector<uint32_t> keys_;
  std::vector<int64_t> members_;
  bool backwards_ = false;
};

ffi::Error Run(ffi::Buffer<ffi::F32> gain, ffi::Buffer<ffi::F32> penalty,
               ffi::Buffer<ffi::F32> rows, ffi::Buffer<ffi::F32> diagonal,
               ffi::Buffer<ffi::PRED> finite, ffi::Buffer<ffi::PRED> allowed,
               ffi::Buffer<ffi::F32> start, ffi::ResultBuffer<ffi::F32> x,
               ffi::ResultBuffer<ffi::F32> product,
               ffi::ResultBuffer<ffi::F32> bound,
               ffi::ResultBuffer<ffi::S32> num_steps,
               ffi::ResultBuffer<ffi::PRED> stationary, int64_t k,
               float loading, int64_t most_steps, float tol) {
  const Problem problem = {static_cast<int64_t>(rows.dimensions()[0]),
                           static_cast<int64_t>(rows.dimensions()[1]),
                           k,
                           loading,
                           *penalty.typed_data(),
                           gain.typed_data(),
                           rows.typed_data(),
                           diagonal.typed_data(),
                           finite.typed_data(),
                           allowed.typed_data()};
  std::copy_n(start.typed_data(), problem.num, x->typed_data());
  const FrankWolfe::End end = FrankWolfe(problem).Maximize(
      x->typed_data(), product->typed_data(), most_steps, tol);
  *bound->typed_data() = end.bound;
  *num_steps->typed_data() = end.num_steps;
  *stationary->typed_data() = end.stationary;
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(NnnFrankWolfe, Run,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::PRED>>()
                                  .Attr<int64_t>("k")
                                  .Attr<float>("loading")
                                  .Attr<int64_t>("num_steps")
                                  .Attr<float>("tol"));
