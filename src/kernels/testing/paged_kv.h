// K and V of some KV heads in pages whose surroundings are poisoned, for tests of kernels.
#ifndef HEADWAY_KERNELS_TESTING_PAGED_KV_H_
#define HEADWAY_KERNELS_TESTING_PAGED_KV_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/cache.h"
#include "kernels/pages.h"

namespace headway {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// How pages lie in memory: pages, heads and parameters are apart by the gaps, in bytes, and by what
// rounds their strides up to the alignment.
struct PageLayout {
  int64_t alignment = 2;
  int64_t page_gap = 0;
  int64_t head_gap = 0;
  int64_t params_gap = 0;
  int64_t params_alignment = 2;
  bool params_by_page = false;  // those of a page's heads lie together, as in slabs
  bool descending = false;      // every page lies in front of the one before it
  bool values_first = false;
};

// How large what is added up for each element of a decoded row can be: the zero of its parameters
// and the rest apart. `slot` is the row's in its page.
std::vector<double> CodesReach(const PageFormat& format, const std::byte* params, int64_t slot,
                               bool of_keys, std::vector<double> row);

// Numbers of a normal distribution in slots [first_slot, first_slot + count) of every head; all
// bytes that no such slot owns are 0xFF, which is NaN in every dtype. In an encoding the pages are
// full, and what lies around their codes and parameters is poisoned.
class PagedKv {
 public:
  struct Shape {
    PageFormat format;
    int heads = 1;
    int64_t first_slot = 0;
    int64_t count = 0;
    PageLayout layout = {};
    float key_size = 1.0f;      // of the keys' numbers
    bool uneven_keys = false;   // channel 3 of the keys is sixteen times as large
    bool tiny_numbers = false;  // one in a thousand is a millionth of what it would be
  };

  PagedKv(const Shape& shape, Random& random);
  PagedKv(const PagedKv&) = delete;
  PagedKv& operator=(const PagedKv&) = delete;

  // Keys [begin, end) of every head, where they lie here, or in a copy of memory() at `memory`.
  PageRun Run(int64_t begin, int64_t end);
  PageRun Run() { return Run(0, shape_.count); }
  PageRun RunIn(std::byte* memory);
  // All that the run points to.
  const std::vector<std::byte>& memory() const { return closed_ ? coded_.bytes : plain_.bytes; }

  const Shape& shape() const { return shape_; }
  // Elements of pages without an encoding; `key` may be that of a slot around the count.
  void SetK(int head, int64_t key, int64_t i, float value);
  void SetV(int head, int64_t key, int64_t i, float value);
  float K(int head, int64_t key, int64_t i) const;
  float V(int head, int64_t key, int64_t i) const;
  // A row as numbers, whatever its encoding.
  std::vector<double> KeyRow(int head, int64_t key) const { return Row(head, key, true); }
  std::vector<double> ValueRow(int head, int64_t key) const { return Row(head, key, false); }
  // How large what is added up for each element of a row can be: of codes, the zero and the rest
  // apart.
  std::vector<double> KeyReach(int head, int64_t key) const { return Reach(head, key, true); }
  std::vector<double> ValueReach(int head, int64_t key) const { return Reach(head, key, false); }

  // Makes a parameter NaN, as encoding does where a group's numbers are not finite: the scale of
  // channel 3 of K, or of token 5 and its first channels of V.
  void PoisonParams(int head, int64_t page, bool of_keys);
  // Encodes half of a lossless page again, as one of more escapes than it has entries.
  void MakeUnfit(int head, int64_t page, bool of_keys);

 private:
  // Bytes with the strides and the first pages of a run; its pointers are null.
  struct Planes {
    Planes() = default;
    Planes(const Shape& shape, int64_t pages, bool closed);
    PageRun In(std::byte* memory) const;

    std::vector<std::byte> bytes;
    PageRun run;
    int64_t k = 0, v = 0, params = -1;  // offsets; -1: none
  };

  void Set(int64_t plane, int head, int64_t key, int64_t i, float value);
  float Get(int64_t plane, int head, int64_t key, int64_t i) const;
  void DrawRow(int head, int64_t key, Random& random);
  void Encode(Random& random);
  EncodePagesItem ItemOfAll();
  std::vector<double> Row(int head, int64_t key, bool of_keys) const;
  std::vector<double> Reach(int head, int64_t key, bool of_keys) const;

  Shape shape_;
  int64_t pages_ = 0;
  bool closed_ = false;
  Planes plain_;
  Planes coded_;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_TESTING_PAGED_KV_H_
