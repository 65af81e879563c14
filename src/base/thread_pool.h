// ThreadPool: the compute threads of one engine. Kernels split their work over it; I/O and copies
// have threads of their own (device/, kv/), so a pool thread never waits for a disk.
#ifndef HEADWAY_BASE_THREAD_POOL_H_
#define HEADWAY_BASE_THREAD_POOL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace headway {

class ThreadPool {
 public:
  // `threads` in all, the caller of Run among them; 0 takes every core this process may use. Where
  // the system does not start that many, the pool warns and has fewer: they do the same work.
  // Between Runs the others offer their cores to whoever wants them for `yield_time`, then sleep:
  // waking takes tens of microseconds.
  explicit ThreadPool(int threads,
                      std::chrono::microseconds yield_time = std::chrono::microseconds(50));
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls fn(thread, begin, end) over [0, items) cut in pieces of `grain` items, on every thread,
  // and returns when all is done. Pieces are handed out in order as threads become free; `thread`
  // is in [0, threads()), and no two pieces run under the same one at once. One Run at a time:
  // kernels of one engine are issued by one thread. `fn` must not call Run. What it throws ends its
  // piece, and the first of that comes out of Run once no thread is at work any more.
  void Run(int64_t items, int64_t grain,
           const std::function<void(int thread, int64_t begin, int64_t end)>& fn);

 private:
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

}  // namespace headway

#endif  // HEADWAY_BASE_THREAD_POOL_H_
