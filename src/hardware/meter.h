// Meter: how fast a device, its bus and the host's memory are, by the kernels and copies of an
// engine. One for both `bench`, which needs a few peaks, and `probe`, which needs curves.
#ifndef HEADWAY_HARDWARE_METER_H_
#define HEADWAY_HARDWARE_METER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/env.h"
#include "base/thread_pool.h"
#include "device/budget.h"
#include "device/device.h"
#include "hardware/host_attention.h"
#include "headway/status.h"
#include "kernels/backend/backend.h"
#include "kernels/kernels.h"

namespace headway::hardware {

// What is measured.
struct Target {
  std::string device = "cpu";      // as NewBackend takes it
  std::optional<std::string> isa;  // of the CPU's kernels; absent: the best that there is
  std::optional<int> threads;      // of the host; absent: every core
  bool shares_every_core = false;  // threads are a rank's part of every core, which nobody gave

  // As NewBackend and ThreadPool take them.
  std::string isa_name() const { return isa.value_or("auto"); }
  int pool_threads() const { return threads.value_or(0); }
};

// What is worked on: large enough that caches do not hold it.
struct MeterSizes {
  int64_t rows, in, out;  // of a product
  int64_t weights;        // matrices taken by turns
  int heads, group, head_dim;
  int64_t keys;        // of prefill attention
  int64_t most_keys;   // of decode attention
  int64_t copy_bytes;  // the largest copy
  DType activation;
};

class Meter {
 public:
  // Less is worked on where each figure has less time than that.
  static constexpr double kShortSeconds = 0.1;

  // Takes about 1.4 GiB of a GPU, or of RAM 200 MiB where time is short, else 1.1 GiB. Each
  // figure is measured for `seconds`, after work for as long: a GPU that has been idle or draws
  // little power is faster than one that works.
  static Result<std::unique_ptr<Meter>> Create(Env& env, const Target& target, double seconds);

  const MeterSizes& sizes() const { return sizes_; }
  const BackendInfo& info() const { return backend_->info(); }

  // Of a product of that many rows with a matrix [out, in] of which `out` rows are used.
  Result<double> ProductSeconds(int64_t rows, int64_t out);
  // Of prefill attention of that many tokens and KV heads against sizes().keys keys.
  Result<double> AttentionSeconds(int64_t tokens, int heads);
  // Of one token's attention over so many keys of all heads, and the merge of its parts.
  Result<double> DecodeSeconds(int64_t keys);

  // Of choosing among so many keys of each head by the rows of so many tokens, in one look or two,
  // and of attending to what one look lists: where it lies, on the device or in the host's memory,
  // or moved together; in pages of an encoding. Work that products read is written over.
  enum class Looks { kOne, kTwo };
  enum class ListedPages { kDevice, kMoved, kHost };
  Result<double> ChoiceSeconds(int64_t tokens, int64_t keys, Looks looks);
  Result<double> ListedSeconds(int64_t tokens, int64_t keys, ListedPages pages,
                               Encoding encoding = Encoding::kNone);
  // Of a choice by such rows that reads keys in stages where they lie, or rotated back; and the
  // bytes of the keys that one list takes.
  enum class StageKeys { kAsTheyLie, kTurned };
  Result<double> StagesSeconds(int64_t tokens, int64_t keys, StageKeys how);
  double StageBytes(int64_t keys) const;
  // Of the summaries that a choice by one token reads; of those of its second look's candidates,
  // with their sketches; and the keys that a head lists.
  double ChoiceBytes(int64_t keys) const;
  double CandidateBytes(int64_t keys) const;
  double ListedKeys(int64_t keys) const;

  // Of the smallest kernel behind another, and from such a kernel's start until the host knows.
  Result<double> LaunchSeconds();
  Result<double> SyncSeconds();

  // Of one of many copies.
  Result<double> CopySeconds(Lane lane, int64_t bytes);
  // Bytes a second each way while both are busy: the slower one's.
  Result<double> BothDirections();

  // Of so many threads of the host, alone or while copies go to the device.
  enum class Beside { kNothing, kCopies };
  struct HostRate {
    double bytes_per_second = 0.0;
    double copied_per_second = 0.0;  // to the device meanwhile; 0 without copies
  };
  // Reading its memory, and the path `host` in decode: attention to keys and values there.
  Result<HostRate> ReadHost(int threads, Beside beside);
  Result<HostRate> AttendOnHost(int threads, Beside beside, const HostAttentionMaker& maker);

 private:
  Meter(Env& env, double seconds, const Target& target)
      : env_(env), seconds_(seconds), isa_(target.isa_name()), pool_(target.pool_threads()) {}
  Status Allocate();
  int64_t WeightBytes() const { return sizes_.out * sizes_.in * 2; }
  int64_t ActivationBytes(int64_t n) const {
    return n * static_cast<int64_t>(DTypeBytes(sizes_.activation));
  }
  std::byte* x() { return memory_->data() + sizes_.weights * WeightBytes(); }
  std::byte* y() { return x() + ActivationBytes(sizes_.rows * sizes_.in); }
  float* states() {
    return reinterpret_cast<float*>(y() + ActivationBytes(sizes_.rows * sizes_.out));
  }
  KeyRun Keys(std::byte* data, int64_t keys) const;
  void Product(int64_t rows, int64_t out);
  void SmallestKernel();
  Result<std::unique_ptr<Buffer>> HostMemory(Device& cpu, ThreadPool& pool);
  // Of work that reads `bytes` each time.
  Result<HostRate> RateOf(const std::function<Status()>& work, int64_t bytes, Beside beside);
  // Seconds of one of `count` calls that follow one another for a while: of a burst they would be
  // fewer, before a GPU comes to the power that it may draw and its clock falls.
  Result<double> Seconds(Stream& stream, int count, const std::function<void(int)>& work);
  struct Selection;
  Selection SelectionOf(int64_t rows, int64_t keys, Looks looks,
                        Encoding encoding = Encoding::kNone);
  void Choose(Selection* selection);

  Env& env_;
  const double seconds_;
  const std::string isa_;
  MeterSizes sizes_ = {};
  ThreadPool pool_;  // of kernels that run on the host; outlives them
  Budget budget_{"probe", kUnlimited};
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Buffer> memory_;  // weights, x, y, states; keys and values are among the weights
  std::unique_ptr<Buffer> pinned_;
  int64_t next_product_ = 0;  // matrices are taken by turns
};

}  // namespace headway::hardware

#endif  // HEADWAY_HARDWARE_METER_H_
