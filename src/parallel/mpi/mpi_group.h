// MpiGroup: ranks that are processes, over MPI.
#ifndef HEADWAY_PARALLEL_MPI_MPI_GROUP_H_
#define HEADWAY_PARALLEL_MPI_MPI_GROUP_H_

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "parallel/process_group.h"

namespace headway {

class MpiGroup final : public ProcessGroup, private Communicator {
 public:
  static Result<std::unique_ptr<ProcessGroup>> Join();
  ~MpiGroup() override;

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  int core_sharers() const override { return core_sharers_; }
  int rank_on_machine() const override { return rank_on_machine_; }
  int machines() const override { return machines_; }
  Communicator& communicator() override { return *this; }
  Status Run(const std::function<Status()>& work) override;
  const Status& broken() const override { return broken_; }
  Result<std::string> TextOfFirst(const std::string& text) override;
  Result<std::vector<int64_t>> Gather(std::span<const int64_t> values) override {
    return GatherAt(kHosts, values);
  }
  Result<std::vector<std::string>> GatherTexts(const std::string& text) override;
  void CountDeviceCall() override;
  DeviceCalls AskDeviceCalls() override;
  void GiveUpDeviceCalls(GaveUp why) override;

 private:
  // Ranks make calls in order at each place. A stream may be behind its host. Those of devices are
  // counted as they are begun, the others as they are done.
  enum Place { kStreams, kHosts, kDevices, kPlaces };
  static constexpr int64_t kGivenUp = -1;  // calls of devices, past and future

  // What a rank says at the end of its work, so that those that wait for it do not wait for ever.
  struct Farewell {
    int32_t code = 0;             // a StatusCode
    int32_t cut_short = 0;        // the error is another rank's end
    int64_t calls[kPlaces] = {};  // that it has made
    char text[1000] = {};

    Status status() const { return Status(static_cast<StatusCode>(code), text); }
  };

  void AllReduceSum(Stream& stream, float* data, int64_t count) override;
  void AllGather(Stream& stream, const SharedColumns& matrix) override;
  void Broadcast(Stream& stream, std::byte* data, int64_t bytes, int from) override;
  void Barrier(Stream& stream) override;
  Result<int64_t> OfFirst(int64_t value) override;
  Status GatherOnHost(std::span<const std::byte> own, std::span<std::byte> all) override;

  Status CountMachine();
  // Begins a call of a place and waits for it. Calls of MPI are made by one thread at a time.
  Status Call(Place place, const std::function<int(MPI_Comm comm, MPI_Request* request)>& begin);
  // Whether a rank has ended without the call that this one is in.
  bool CutShort(Place place);
  void SayFarewell(const Status& status);
  Status Conclude(const Status& own);

  Status SumBlock(float* data, int64_t count);
  Status GatherColumns(const SharedColumns& matrix);
  Status GatherRows(const SharedColumns& matrix, std::span<const int64_t> shapes);
  Status SendFirst(Place place, std::span<std::byte> data, int from);
  Result<std::vector<int64_t>> GatherAt(Place place, std::span<const int64_t> values);

  int rank_ = 0, ranks_ = 1, core_sharers_ = 1, rank_on_machine_ = 0, machines_ = 1;
  std::mutex mutex_;  // of calls of MPI, and of what this Run has come to
  MPI_Comm comms_[kDevices] = {MPI_COMM_NULL, MPI_COMM_NULL};
  MPI_Comm farewell_comm_ = MPI_COMM_NULL;
  // What a call gives and takes, which one that is cut short goes on using.
  struct {
    std::vector<std::byte> given, received;
  } buffers_[kDevices], texts_;
  // Of this Run.
  bool runs_ = false;
  int64_t calls_[kPlaces] = {};
  bool cut_short_ = false;
  std::vector<Farewell> farewells_;    // [ranks]
  std::vector<MPI_Request> requests_;  // [ranks]: for them; null where one has come
  Status broken_;
  bool given_up_ = false;  // calls of devices, from then on
};
}  // namespace headway

#endif  // HEADWAY_PARALLEL_MPI_MPI_GROUP_H_
