// What ranks in processes say to each other.
#include <algorithm>
#include <climits>
#include <numeric>

#include "base/bytes.h"
#include "base/check.h"
#include "base/exceptions.h"
#include "parallel/group_errors.h"
#include "parallel/mpi/mpi_group.h"

namespace headway {
namespace {

// Floats that are added up, or gathered, at a time.
constexpr int64_t kBlock = int64_t{1} << 18;

// Room for `count` values.
template <typename T>
T* Fit(std::vector<std::byte>* buffer, int64_t count) {
  buffer->resize(static_cast<size_t>(count) * sizeof(T));
  return reinterpret_cast<T*>(buffer->data());
}

}  // namespace

// Each rank adds up its part of the elements, in the order of the ranks, and gives it to all.
Status MpiGroup::SumBlock(float* data, int64_t count) {
  std::vector<int> sizes, begins, own_sizes, own_begins;
  const auto begin_of = [&](int rank) { return static_cast<int>(count * rank / ranks_); };
  const int own = begin_of(rank_ + 1) - begin_of(rank_);
  for (int rank = 0; rank < ranks_; ++rank) {
    begins.push_back(begin_of(rank));
    sizes.push_back(begin_of(rank + 1) - begin_of(rank));
    own_begins.push_back(rank * own);
    own_sizes.push_back(own);
  }
  auto& [given_bytes, received_bytes] = buffers_[kStreams];
  float* const given = Fit<float>(&given_bytes, count);
  float* const received =
      Fit<float>(&received_bytes, std::max<int64_t>(int64_t{own} * ranks_, count));
  std::copy_n(data, count, given);
  Status status = Call(kStreams, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Ialltoallv(given, sizes.data(), begins.data(), MPI_FLOAT, received, own_sizes.data(),
                          own_begins.data(), MPI_FLOAT, comm, request);
  });
  if (!status.ok()) return status;
  std::copy_n(received, own, given);
  for (int rank = 1; rank < ranks_; ++rank) {
    const float* from = received + int64_t{rank} * own;
    for (int i = 0; i < own; ++i) given[i] += from[i];
  }
  status = Call(kStreams, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Iallgatherv(given, own, MPI_FLOAT, received, sizes.data(), begins.data(), MPI_FLOAT,
                           comm, request);
  });
  if (status.ok()) std::copy_n(received, count, data);
  return status;
}

void MpiGroup::AllReduceSum(Stream& stream, float* data, int64_t count) {
  const int64_t bytes = count * int64_t{sizeof(float)};
  stream.HostWork({"all-reduce", 2 * bytes, count * (ranks_ - 1)}, [this, data, count] {
    for (int64_t at = 0; at < count; at += kBlock) {
      if (Status s = SumBlock(data + at, std::min(kBlock, count - at)); !s.ok()) return s;
    }
    return OkStatus();
  });
}

// [begin, end) of each rank behind one another in `shapes`, after rows and columns.
Status MpiGroup::GatherRows(const SharedColumns& matrix, std::span<const int64_t> shapes) {
  const auto begin_of = [&](int rank) { return shapes[static_cast<size_t>(4 * rank + 2)]; };
  const auto width_of = [&](int rank) {
    return shapes[static_cast<size_t>(4 * rank + 3)] - begin_of(rank);
  };
  std::vector<int> sizes, begins;
  int total = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    begins.push_back(total);
    sizes.push_back(static_cast<int>(matrix.rows * width_of(rank)));
    total += sizes.back();
  }
  const int64_t own = width_of(rank_);
  auto& [given_bytes, received_bytes] = buffers_[kStreams];
  float* const given = Fit<float>(&given_bytes, matrix.rows * own);
  float* const received = Fit<float>(&received_bytes, total);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    std::copy_n(matrix.data + row * matrix.columns + matrix.begin, own, given + row * own);
  }
  const Status status = Call(kStreams, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Iallgatherv(given, static_cast<int>(matrix.rows * own), MPI_FLOAT, received,
                           sizes.data(), begins.data(), MPI_FLOAT, comm, request);
  });
  if (!status.ok()) return status;
  for (int rank = 0; rank < ranks_; ++rank) {
    const float* from = received + begins[static_cast<size_t>(rank)];
    for (int64_t row = 0; row < matrix.rows && rank != rank_; ++row) {
      std::copy_n(from + row * width_of(rank), width_of(rank),
                  matrix.data + row * matrix.columns + begin_of(rank));
    }
  }
  return OkStatus();
}

Status MpiGroup::GatherColumns(const SharedColumns& matrix) {
  const int64_t shape[] = {matrix.rows, matrix.columns, matrix.begin, matrix.end};
  const Result<std::vector<int64_t>> shapes = GatherAt(kStreams, shape);
  if (!shapes.ok()) return shapes.status();
  for (int rank = 0; rank < ranks_; ++rank) {
    if (std::equal(shape, shape + 2, shapes->data() + 4 * rank)) continue;
    return UnequalSizes();
  }
  const int64_t most = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, matrix.columns));
  for (int64_t row = 0; row < matrix.rows; row += most) {
    SharedColumns some = matrix;
    some.data += row * matrix.columns;
    some.rows = std::min(most, matrix.rows - row);
    if (Status s = GatherRows(some, *shapes); !s.ok()) return s;
  }
  return OkStatus();
}

void MpiGroup::AllGather(Stream& stream, const SharedColumns& matrix) {
  stream.HostWork({"all-gather", 2 * matrix.rows * matrix.columns * int64_t{sizeof(float)}, 0},
                  [=, this] { return GatherColumns(matrix); });
}

Status MpiGroup::SendFirst(Place place, std::span<std::byte> data, int from) {
  HEADWAY_CHECK(data.size() <= INT_MAX);
  std::vector<std::byte>& buffer = buffers_[place].given;
  buffer.assign(data.begin(), data.end());
  const Status status = Call(place, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Ibcast(buffer.data(), static_cast<int>(buffer.size()), MPI_BYTE, from, comm,
                      request);
  });
  if (status.ok()) std::copy(buffer.begin(), buffer.end(), data.begin());
  return status;
}

void MpiGroup::Broadcast(Stream& stream, std::byte* data, int64_t bytes, int from) {
  stream.HostWork({"broadcast", 2 * bytes, 0}, [=, this] {
    return SendFirst(kStreams, {data, static_cast<size_t>(bytes)}, from);
  });
}

void MpiGroup::Barrier(Stream& stream) {
  stream.HostWork({"barrier", 0, 0}, [this] {
    return Call(kStreams, [](MPI_Comm comm, MPI_Request* r) { return MPI_Ibarrier(comm, r); });
  });
}

Result<int64_t> MpiGroup::OfFirst(int64_t value) {
  const Status status = SendFirst(kHosts, std::as_writable_bytes(std::span(&value, 1)), 0);
  if (!status.ok()) return status;
  return value;
}

Status MpiGroup::GatherOnHost(std::span<const std::byte> own, std::span<std::byte> all) {
  HEADWAY_CHECK(all.size() == own.size() * static_cast<size_t>(ranks_) && own.size() <= INT_MAX);
  const auto count = static_cast<int>(own.size());
  auto& [given, received] = buffers_[kHosts];
  given.assign(own.begin(), own.end());
  received.resize(all.size());
  const Status status = Call(kHosts, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Iallgather(given.data(), count, MPI_BYTE, received.data(), count, MPI_BYTE, comm,
                          request);
  });
  if (status.ok()) std::copy(received.begin(), received.end(), all.begin());
  return status;
}

Result<std::string> MpiGroup::TextOfFirst(const std::string& text) {
  const Result<int64_t> size = OfFirst(std::ssize(text));
  if (!size.ok()) return size.status();
  std::string all = text;
  all.resize(static_cast<size_t>(*size));
  const Status status = SendFirst(kHosts, std::as_writable_bytes(std::span(all)), 0);
  if (!status.ok()) return status;
  return all;
}

Result<std::vector<int64_t>> MpiGroup::GatherAt(Place place, std::span<const int64_t> values) {
  const auto count = static_cast<int>(values.size());
  const int64_t total = int64_t{count} * ranks_;
  int64_t* const given = Fit<int64_t>(&buffers_[place].given, count);
  int64_t* const received = Fit<int64_t>(&buffers_[place].received, total);
  std::copy(values.begin(), values.end(), given);
  const Status status = Call(place, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Iallgather(given, count, MPI_INT64_T, received, count, MPI_INT64_T, comm, request);
  });
  if (!status.ok()) return status;
  return std::vector<int64_t>(received, received + total);
}

// Room for all of it first, on all ranks: none begins what another one cannot end.
Result<std::vector<std::string>> MpiGroup::GatherTexts(const std::string& text) {
  const int64_t own = std::ssize(text);
  const Result<std::vector<int64_t>> sizes = GatherAt(kHosts, {&own, 1});
  if (!sizes.ok()) return sizes.status();
  const int64_t total = std::accumulate(sizes->begin(), sizes->end(), int64_t{0});
  if (total > kMostGatheredBytes) {
    return Status(StatusCode::kUnsupported, "what ranks tell the first one takes more than " +
                                                FormatBytes(kMostGatheredBytes));
  }
  std::vector<int> counts, begins;
  auto& [given, received] = texts_;
  const Status fits = Guarded([&] {
    counts.assign(sizes->begin(), sizes->end());
    begins.resize(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
    std::copy(text.begin(), text.end(), Fit<char>(&given, own));
    Fit<char>(&received, rank_ == 0 ? total : 0);
    return OkStatus();
  });
  const int64_t room[] = {fits.ok() ? 1 : 0};
  const Result<std::vector<int64_t>> all = GatherAt(kHosts, room);
  if (!all.ok() || !fits.ok()) return all.ok() ? fits : all.status();
  if (std::find(all->begin(), all->end(), 0) != all->end()) {
    return Status(StatusCode::kIo, "a rank has no memory for what ranks tell the first one");
  }
  const Status status = Call(kHosts, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Igatherv(given.data(), static_cast<int>(own), MPI_CHAR, received.data(),
                        counts.data(), begins.data(), MPI_CHAR, 0, comm, request);
  });
  if (!status.ok()) return status;
  const auto* const bytes = reinterpret_cast<const char*>(received.data());
  std::vector<std::string> texts;
  for (size_t rank = 0; rank_ == 0 && rank < counts.size(); ++rank) {
    texts.emplace_back(bytes + begins[rank], static_cast<size_t>(counts[rank]));
  }
  given = {};  // they may be much
  received = {};
  return texts;
}

}  // namespace headway
