#include "hardware/rates.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"

namespace headway::hardware {
namespace {

constexpr int64_t kMostOfFile = 512 * kMiB;
constexpr int64_t kPieceBytes = kMiB;
constexpr int kFilledWith = 0x3F;
constexpr int kLookedFor = 0xFF;
constexpr int64_t kDepth = 16;  // large pieces in flight of a thread
constexpr int64_t kBatch = kDepth * kPieceBytes;
constexpr size_t kSmallPieces =
    32;  // in flight: a round of lists has some 16, and two are under way
constexpr int64_t kPiecesNanos = 250'000'000;

// Of a file that it fills with that many batches.
Result<DiskRates> RatesOf(Env& env, ThreadPool& pool, File& file, std::byte* memory,
                          int64_t batches) {
  Random random(1);
  for (int64_t i = 0; i < pool.threads() * kBatch; i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(memory + i, &word, sizeof(word));
  }
  std::vector<Status> statuses(static_cast<size_t>(pool.threads()));
  enum class Direction { kRead, kWrite };
  const auto each = [&](Direction direction) {
    pool.Run(batches, 1, [&](int thread, int64_t begin, int64_t end) {
      for (int64_t batch = begin; batch < end; ++batch) {
        std::array<IoPiece, kDepth> pieces;
        for (size_t i = 0; i < kDepth; ++i) {
          const int64_t at = static_cast<int64_t>(i) * kPieceBytes;
          pieces[i] = {memory + thread * kBatch + at, kPieceBytes, batch * kBatch + at};
        }
        Status s = direction == Direction::kWrite ? file.Write(pieces) : file.Read(pieces);
        if (!s.ok()) statuses[static_cast<size_t>(thread)] = std::move(s);
      }
    });
  };
  const int64_t start = env.NowNanos();
  each(Direction::kWrite);
  Status synced = file.Sync();
  const double written = static_cast<double>(env.NowNanos() - start) * 1e-9;
  const double seconds = BestSeconds(env, 3, [&] { each(Direction::kRead); });
  for (Status& s : statuses) {
    if (!s.ok()) return std::move(s);
  }
  if (!synced.ok()) return synced;
  const auto moved = static_cast<double>(batches * kBatch);
  return DiskRates{moved / seconds, moved / written, {}};
}

struct Pieces {
  int64_t bytes = 0;  // of one
  int64_t file = 0;   // bytes of the file
};
// The mean time of a piece, over a quarter of a second.
Result<double> PieceSeconds(Env& env, File& file, std::byte* memory, const Pieces& of) {
  Random random(static_cast<uint64_t>(of.bytes));
  const int64_t start = env.NowNanos();
  int64_t count = 0, end = start;
  while (end - start < kPiecesNanos) {
    std::array<IoPiece, kSmallPieces> pieces;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto at = static_cast<int64_t>(random.Below(static_cast<uint64_t>(of.file / of.bytes)));
      pieces[i] = {memory + static_cast<int64_t>(i) * of.bytes, static_cast<size_t>(of.bytes),
                   at * of.bytes};
    }
    if (Status s = file.Read(pieces); !s.ok()) return s;
    count += std::ssize(pieces);
    end = env.NowNanos();
  }
  return static_cast<double>(end - start) * 1e-9 / static_cast<double>(count);
}

}  // namespace

void FillMemory(ThreadPool& pool, std::byte* data, int64_t bytes) {
  pool.Run(bytes / kPieceBytes, 1, [&](int, int64_t begin, int64_t end) {
    std::memset(data + begin * kPieceBytes, kFilledWith,
                static_cast<size_t>((end - begin) * kPieceBytes));
  });
}

void ScanMemory(ThreadPool& pool, const std::byte* data, int64_t bytes) {
  std::atomic<int> found = 0;  // keeps the compiler from leaving the reads out
  pool.Run(bytes / kPieceBytes, 1, [&](int, int64_t begin, int64_t end) {
    // The C library looks for a byte with the widest vectors.
    const void* at = std::memchr(data + begin * kPieceBytes, kLookedFor,
                                 static_cast<size_t>((end - begin) * kPieceBytes));
    found += at != nullptr ? 1 : 0;
  });
}

double BestSeconds(Env& env, int repeats, const std::function<void()>& work) {
  work();  // first touch, caches of the kernels
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < repeats; ++i) {
    const int64_t start = env.NowNanos();
    work();
    best = std::min(best, env.NowNanos() - start);
  }
  return static_cast<double>(std::max<int64_t>(best, 1)) * 1e-9;
}

Result<double> MeasureRead(Env& env, ThreadPool& pool) {
  Result<std::byte*> memory = env.AllocateMemory(static_cast<size_t>(kBeyondCaches));
  if (!memory.ok()) return memory.status();
  FillMemory(pool, *memory, kBeyondCaches);
  const double seconds = BestSeconds(env, 9, [&] { ScanMemory(pool, *memory, kBeyondCaches); });
  env.FreeMemory(*memory, static_cast<size_t>(kBeyondCaches));
  return static_cast<double>(kBeyondCaches) / seconds;
}

Result<DiskRates> MeasureDisk(Env& env, ThreadPool& pool, const DiskMeasure& measure) {
  const int64_t batches = std::min(kMostOfFile, measure.bytes) / kBatch;
  if (batches == 0) return DiskRates{};
  Result<std::unique_ptr<File>> file =
      env.Open(measure.directory, OpenMode::kTemporary, FileIo::kDirect);
  if (!file.ok()) return file.status();
  const int64_t in_memory = pool.threads() * kBatch;
  Result<std::byte*> memory = env.AllocateMemory(static_cast<size_t>(in_memory));
  if (!memory.ok()) return memory.status();
  Result<DiskRates> rates = RatesOf(env, pool, **file, *memory, batches);
  for (const int64_t bytes : measure.pieces) {
    if (!rates.ok()) break;
    const Result<double> seconds = PieceSeconds(env, **file, *memory, {bytes, batches * kBatch});
    if (!seconds.ok()) {
      rates = seconds.status();
    } else {
      rates->pieces.push_back(*seconds);
    }
  }
  env.FreeMemory(*memory, static_cast<size_t>(in_memory));
  return rates;
}

}  // namespace headway::hardware
