// The hot part of indexes/sparse_summaries.py, on arrays of the host.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct Entry {
  float value;
  int32_t coord;
  // A heap has its largest on top: the larger value, then the lower coordinate.
  bool operator<(const Entry& other) const {
    return value != other.value ? value < other.value : coord > other.coord;
  }
};

// First of the largest of those that may be chosen.
int32_t Best(const float* scores, const std::vector<uint8_t>& barred,
             int32_t count) {
  int32_t best = -1;
  for (int32_t c = 0; c < count; ++c) {
    if (barred[c]) continue;
    if (best < 0 || scores[c] > scores[best]) best = c;
  }
  return best;
}

}  // namespace

// Labels the documents of some lists by their best centre.
extern "C" void NnnAssign(int64_t num_lists, const int64_t* list_starts,
                          const int32_t* docs, const int64_t* centre_starts,
                          const int32_t* centres, const int64_t* starts,
                          const int32_t* indices, const float* values,
                          int64_t vocab, int64_t min_cluster_size,
                          int32_t* labels) {
  std::vector<int32_t> local(vocab, -1), used, sizes;
  std::vector<float> panel, scores;
  std::vector<uint8_t> barred;
  for (int64_t list = 0; list < num_lists; ++list) {
    const int64_t first = list_starts[list];
    const int64_t members = list_starts[list + 1] - first;
    const int32_t* centre = centres + centre_starts[list];
    const int32_t count = centre_starts[list + 1] - centre_starts[list];
    int32_t* label = labels + first;
    if (count == 1) {
      std::fill(label, label + members, 0);
      continue;
    }
    // A row of all centres for each coordinate that one of them has.
    const int64_t width = (count + 15) / 16 * 16;
    panel.clear();
    for (int32_t c = 0; c < count; ++c) {
      for (int64_t i = starts[centre[c]]; i < starts[centre[c] + 1]; ++i) {
        int32_t& row = local[indices[i]];
        if (row < 0) {
          row = used.size();
          used.push_back(indices[i]);
          panel.resize(used.size() * width, 0.0f);
        }
        panel[row * width + c] = values[i];
      }
    }
    scores.assign(members * width, 0.0f);
    for (int64_t m = 0; m < members; ++m) {
      float* score = scores.data() + m * width;
      const int32_t doc = docs[first + m];
      for (int64_t i = starts[doc]; i < starts[doc + 1]; ++i) {
        const int32_t at = local[indices[i]];
        if (at < 0) continue;
        const float* row = panel.data() + at * width;
        const float value = values[i];
        for (int64_t c = 0; c < width; ++c) score[c] += value * row[c];
      }
    }
    for (int32_t coord : used) local[coord] = -1;
    used.clear();
    barred.assign(count, 0);
    sizes.assign(count, 0);
    for (int64_t m = 0; m < members; ++m) {
      label[m] = Best(scores.data() + m * width, barred, count);
      ++sizes[label[m]];
    }
    int32_t large = 0;
    for (int32_t c = 0; c < count; ++c) {
      barred[c] = sizes[c] <= min_cluster_size;
      large += !barred[c];
    }
    if (large == 0 || large == count) continue;
    for (int64_t m = 0; m < members; ++m) {
      if (barred[label[m]]) {
        label[m] = Best(scores.data() + m * width, barred, count);
      }
    }
  }
}

// The largest entries of the maximum of some documents, block by block: the
// smallest number that holds `alpha` of the sum, or `length` if that is > 0.
extern "C" void NnnSummaries(int64_t num_blocks, const int64_t* block_starts,
                             const int32_t* postings, const int64_t* starts,
                             const int32_t* indices, const float* values,
                             int64_t vocab, double alpha, int64_t length,
                             int64_t* lengths, int32_t* kept_indices,
                             float* kept_values) {
  std::vector<float> highest(vocab, 0.0f);
  std::vector<int32_t> touched;
  std::vector<Entry> heap;
  int64_t written = 0;
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int64_t p = block_starts[b]; p < block_starts[b + 1]; ++p) {
      const int32_t doc = postings[p];
      for (int64_t i = starts[doc]; i < starts[doc + 1]; ++i) {
        float& most = highest[indices[i]];
        if (most == 0) touched.push_back(indices[i]);
        most = std::max(most, values[i]);
      }
    }
    double total = 0, mass = 0;
    heap.clear();
    for (int32_t coord : touched) {
      heap.push_back({highest[coord], coord});
      total += highest[coord];
      highest[coord] = 0;
    }
    touched.clear();
    std::make_heap(heap.begin(), heap.end());
    const int64_t before = written;
    while (!heap.empty()) {
      const bool wanted = length > 0 ? written - before < length
                                     : alpha >= 1 || mass < alpha * total;
      if (!wanted) break;
      std::pop_heap(heap.begin(), heap.end());
      kept_indices[written] = heap.back().coord;
      kept_values[written++] = heap.back().value;
      mass += heap.back().value;
      heap.pop_back();
    }
    lengths[b] = written - before;
  }
}
