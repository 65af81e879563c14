#include "device/host_stream.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/exceptions.h"

namespace headway {

int64_t HostPoint::NextRecording() {
  std::lock_guard lock(mutex_);
  return ++recorded_;
}

int64_t HostPoint::LastRecording() {
  std::lock_guard lock(mutex_);
  return recorded_;
}

void HostPoint::Reach(int64_t recording) {
  {
    std::lock_guard lock(mutex_);
    if (recording > reached_) reached_ = recording;
  }
  changed_.notify_all();
}

void HostPoint::WaitFor(int64_t recording) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_ >= recording; });
}

bool HostPoint::Reached() {
  std::lock_guard lock(mutex_);
  return reached_ >= recorded_;
}

void CopyRows(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) {
  for (size_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_stride, from + row * from_stride, row_bytes);
  }
}

WorkCost CopyCost(size_t bytes) { return WorkCost{"copy", static_cast<int64_t>(2 * bytes), 0}; }

Result<std::unique_ptr<Stream>> HostStream::Create(Env* env, Trace* trace, Lane lane) {
  std::unique_ptr<HostStream> stream(new HostStream(env, trace, lane));
  Status started = Guarded([&] {
    stream->thread_ = std::thread([made = stream.get()] { made->Loop(); });
    return OkStatus();
  });
  if (!started.ok()) {
    return Status(started.code(), std::string("cannot start the thread of the lane ") +
                                      LaneName(lane) + ": " + started.message());
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

HostStream::~HostStream() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostStream::Copy(std::byte* to, const std::byte* from, size_t bytes) {
  Enqueue([this, to, from, bytes, place = clock_.place()] {
    clock_.Time(CopyCost(bytes), place, [&] { std::memcpy(to, from, bytes); });
  });
}

void HostStream::Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
                        size_t row_bytes, size_t rows) {
  Enqueue([=, this, place = clock_.place()] {
    clock_.Time(CopyCost(row_bytes * rows), place,
                [&] { CopyRows(to, to_stride, from, from_stride, row_bytes, rows); });
  });
}

void HostStream::HostWork(const WorkCost& cost, std::function<Status()> work) {
  Enqueue([this, cost, place = clock_.place(), work = std::move(work)] {
    if (!status().ok()) return;
    Status result;
    clock_.Time(cost, place, [&] { result = work(); });
    if (result.ok()) return;
    std::lock_guard lock(mutex_);
    status_ = std::move(result);
  });
}

void HostStream::Record(Event& event) {
  std::function<void()> reach = static_cast<HostEvent&>(event).RecordOnHost();
  try {
    Enqueue(std::move(reach));
  } catch (...) {
    reach();  // nobody must wait for ever
    throw;
  }
}

Status HostStream::Synchronize() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
  return status_;
}

Status HostStream::status() {
  std::lock_guard lock(mutex_);
  return status_;
}

void HostStream::Enqueue(std::function<void()>&& work) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void HostStream::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    Status thrown = Guarded([&] {
      work();
      return OkStatus();
    });
    work = nullptr;
    lock.lock();
    if (!thrown.ok() && status_.ok()) status_ = std::move(thrown);
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

}  // namespace headway
