#include "base/thread_pool.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace headway {
namespace {

using Clock = std::chrono::steady_clock;
using PieceFunction = std::function<void(int thread, int64_t begin, int64_t end)>;

constexpr int kMaxThreads = 1024;

// How a thread waits: it first spins without a system call (kernels of a step follow each other
// within a few microseconds), then offers its core to others, then (workers only) sleeps.
constexpr int kSpins = 64;

// Two lines: the prefetcher of x86 fetches pairs.
constexpr size_t kCacheLine = 128;

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The cores that this process may use, which in a container are fewer than the machine has.
int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

// How a Run works. The caller writes `job`, stores the number of pieces in `unclaimed` and raises
// `epoch`. Whoever decrements `unclaimed` from a positive value owns one piece. Owning a piece is
// what allows to read `job`: Run cannot return, and so nobody can write `job`, before the piece is
// counted off `unfinished`. A worker that comes late finds nothing to claim and touches nothing, so
// Run never waits for a sleeper.
struct ThreadPool::State {
  struct Job {
    int64_t items = 0;
    int64_t grain = 0;
    int64_t pieces = 0;
    const PieceFunction* fn = nullptr;
  };

  explicit State(std::chrono::microseconds yield) : yield_time(yield) {}
  // Here and not in ~ThreadPool: the constructor may throw when some threads run already.
  ~State() {
    stop.store(true, std::memory_order_release);
    Wake(std::numeric_limits<int64_t>::max());
    for (std::thread& worker : workers) worker.join();
  }

  const std::chrono::microseconds yield_time;
  Job job;
  alignas(kCacheLine) std::atomic<int64_t> unclaimed{0};  // below 0 when threads found none left
  alignas(kCacheLine) std::atomic<int64_t> unfinished{0};
  alignas(kCacheLine) std::atomic<int> epoch{0};  // Runs begun; what idle workers watch
  std::atomic<bool> stop{false};
  std::atomic<bool> failed{false};  // a piece of the job threw `failure`
  std::exception_ptr failure;
  std::vector<std::thread> workers;

  void Work(int thread) {
    int64_t done = 0;
    for (;;) {
      const int64_t left = unclaimed.fetch_sub(1, std::memory_order_acq_rel);
      if (left <= 0) break;
      const int64_t begin = (job.pieces - left) * job.grain;
      // Not begin + grain, which may not fit where grain is near the largest number.
      const int64_t end = begin + std::min(job.grain, job.items - begin);
      try {
        (*job.fn)(thread, begin, end);
      } catch (...) {
        // Read by Run behind `unfinished`, which this piece is not counted off before.
        if (!failed.exchange(true)) failure = std::current_exception();
      }
      ++done;
      if (left == 1) break;
    }
    if (done > 0) unfinished.fetch_sub(done, std::memory_order_release);
  }

  void WaitForNextEpoch(int seen) {
    for (int i = 0; i < kSpins; ++i) {
      if (epoch.load(std::memory_order_acquire) != seen) return;
      Pause();
    }
    const Clock::time_point until = Clock::now() + yield_time;
    do {
      sched_yield();
      if (epoch.load(std::memory_order_acquire) != seen) return;
    } while (Clock::now() < until);
    epoch.wait(seen, std::memory_order_acquire);
  }

  void WorkerLoop(int thread) {
    int seen = 0;
    for (;;) {
      WaitForNextEpoch(seen);
      // Read before claiming: a Run that begins while this thread works makes the next wait short.
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      Work(thread);
    }
  }

  void WaitUntilFinished() const {
    for (int spins = 0; unfinished.load(std::memory_order_acquire) != 0; ++spins) {
      if (spins < kSpins) {
        Pause();
      } else {
        sched_yield();
      }
    }
  }

  // Wakes no more sleepers than there are pieces besides the caller's first.
  void Wake(int64_t wanted) {
    epoch.fetch_add(1);
    if (wanted >= static_cast<int64_t>(workers.size())) {
      epoch.notify_all();
    } else {
      for (int64_t i = 0; i < wanted; ++i) epoch.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads, std::chrono::microseconds yield_time)
    : threads_(1), state_(std::make_unique<State>(yield_time)) {
  HEADWAY_CHECK(threads >= 0);
  const int wanted = std::min(threads == 0 ? UsableCores() : threads, kMaxThreads);
  state_->workers.reserve(static_cast<size_t>(wanted - 1));
  for (int thread = 1; thread < wanted; ++thread) {
    try {
      state_->workers.emplace_back([state = state_.get(), thread] { state->WorkerLoop(thread); });
    } catch (const std::exception& error) {
      Log(LogLevel::kWarning,
          Message{fmt::format(
                      "only {} of {} threads could be started ({}), so work takes longer; raise "
                      "the limit on threads or memory (ulimit -u, -v), or lower ",
                      thread, wanted, error.what()),
                  Option::kThreads});
      break;
    }
  }
  threads_ = 1 + static_cast<int>(state_->workers.size());
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::Run(int64_t items, int64_t grain, const PieceFunction& fn) {
  HEADWAY_CHECK(grain > 0);
  if (items <= 0) return;
  const int64_t pieces = (items - 1) / grain + 1;
  if (pieces == 1 || threads_ == 1) {
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t begin = piece * grain;
      fn(0, begin, begin + std::min(grain, items - begin));
    }
    return;
  }
  State& state = *state_;
  state.job = {.items = items, .grain = grain, .pieces = pieces, .fn = &fn};
  state.unfinished.store(pieces, std::memory_order_relaxed);
  state.unclaimed.store(pieces, std::memory_order_release);
  state.Wake(pieces - 1);
  state.Work(0);
  state.WaitUntilFinished();
  if (state.failed.exchange(false)) std::rethrow_exception(std::exchange(state.failure, nullptr));
}

}  // namespace headway
