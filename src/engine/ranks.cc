#include "engine/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/bytes.h"
#include "base/thread_pool.h"
#include "engine/refused.h"
#include "kernels/backend/backend.h"

namespace headway {
namespace {

// Ranks that share a budget, which is one machine's. That of the disk is of all machines' ranks
// where these share a session's file.
int BudgetSharers(const Settings& settings) { return settings.all_ranks() / settings.nodes; }
int DiskSharers(const Settings& settings) {
  return settings.session.has_value() ? settings.all_ranks() : BudgetSharers(settings);
}

// A rank's part of `all`, which has no end or is cut into parts.
int64_t PartOf(int64_t all, int ranks) { return all == kNoLimit ? kNoLimit : all / ranks; }

// The session's head groups are those of the cut, and not of what heads keep, which are of one head
// anyway.
bool SharesHeadGroups(const Settings& settings) {
  return settings.session.has_value() && !settings.eviction.evicts();
}

}  // namespace

Status CheckRanks(const Settings& settings) {
  if (settings.ranks < 1 || settings.ranks > kMaxRanks) {
    return Wrong({Option::kTensorParallel, fmt::format(": 1 to {} ranks are possible", kMaxRanks)});
  }
  if (settings.all_ranks() == 1) return OkStatus();
  const Result<std::string> device = DeviceOfRank(settings.target.device, 0, settings.all_ranks());
  if (!device.ok()) return device.status();
  if (SharesHeadGroups(settings) && settings.cut.head_group.value_or(1) != 1) {
    return Wrong({Option::kHeadGroup,
                  fmt::format(" {}: ranks that share a session keep each head by itself; leave it "
                              "out",
                              *settings.cut.head_group)});
  }
  return OkStatus();
}

Settings SettingsOfRank(const Settings& settings, int rank) {
  const int ranks = settings.all_ranks();
  if (ranks == 1) return settings;
  Settings own = settings;
  const auto device = [&](int of) { return *DeviceOfRank(settings.target.device, of, ranks); };
  own.target.device = device(rank);
  own.gpu_ranks = 0;
  for (int other = 0; other < ranks; ++other) own.gpu_ranks += device(other) == device(rank);
  // Ranks of several machines are processes.
  own.mapped_ranks = settings.nodes > 1 ? 1 : static_cast<int>(CeilDiv(ranks, own.gpu_ranks));
  const int here = BudgetSharers(settings);
  // Ranks with a run of layers each compute by turns.
  if (settings.ranks > 1) {
    const int threads = ThreadPool(settings.target.pool_threads()).threads();
    own.machine_threads = threads;
    own.target.shares_every_core = !settings.target.threads.has_value();
    // Those of a machine may be any of all.
    own.target.threads = std::max(1, threads / here + (rank % here < threads % here ? 1 : 0));
  }
  own.memory.kv = PartOf(settings.memory.kv, here);
  own.memory.host = PartOf(settings.memory.host, here);
  own.memory.disk = PartOf(settings.memory.disk, DiskSharers(settings));
  if (settings.alias_host_memory.has_value()) {
    own.alias_host_memory = PartOf(*settings.alias_host_memory, here);
  }
  // So that other numbers of ranks find their heads in it.
  if (SharesHeadGroups(settings)) own.cut.head_group = 1;
  if (rank == 0) return own;
  // One warning is enough.
  if (own.target.device == settings.target.device) own.memory.gpu.reset();
  // How long its kernels attend is asked of it beside the first one's.
  own.time_kernels = own.time_kernels || own.trace.has_value();
  own.trace.reset();
  return own;
}

Result<std::vector<Shard>> ShardsOf(const ModelConfig& config, const RankHeads& heads) {
  const ModelShape& shape = config.shape;
  const auto ranks = static_cast<int>(heads.ranks.size());
  if (ranks > std::min(shape.d_ff, shape.vocab)) {
    return Wrong(
        {Option::kTensorParallel, fmt::format(" {}: this model has parts for {} ranks at most",
                                              ranks, std::min(shape.d_ff, shape.vocab))});
  }
  return CutShards(shape, heads.ranks);
}

Hooks HooksOfRank(const Hooks& hooks, Communicator& communicator) {
  const bool first = communicator.rank() == 0;
  Hooks own = first ? hooks : Hooks{};
  if (!hooks.on_text) return own;
  own.on_text = [&hooks, &communicator, first](int request, std::string_view text) {
    const bool on = !first || hooks.on_text(request, text);
    const Result<int64_t> all = communicator.OfFirst(on ? 1 : 0);
    // A rank that has ended ends the next step of the others.
    return all.ok() && *all != 0;
  };
  return own;
}

void TellOfRanks(const Settings& settings, const std::optional<HeadAssignment>& assignment,
                 int64_t sequences, PlanReport* report) {
  if (!assignment.has_value()) return;
  report->ranks = RanksReportOf(*assignment);
  const auto ranks = static_cast<int>(report->ranks->keys.size());
  const auto all = [ranks](int64_t* bytes) { *bytes *= ranks; };
  all(&report->kv_bytes);
  all(&report->memory_bytes);
  all(&report->streamed_weight_bytes);
  for (MemoryLine& line : report->memory) all(&line.bytes);
  report->smallest_kv_memory *= BudgetSharers(settings);
  report->smallest_host_memory *= BudgetSharers(settings);
  report->smallest_disk_memory *= DiskSharers(settings);
  if (report->ranks->profiled) {
    report->reasons.push_back(fmt::format(
        "all ranks wait for the busiest one in every layer: by the profile they attend {:.1f} % of "
        "that time, with heads in their order {:.1f} %; none has more heads of a layer than the "
        "order gives one{}, since a place costs its products in all layers and memory for prompts",
        100.0 * report->ranks->busy_share, 100.0 * report->ranks->static_busy_share,
        report->ranks->shares.empty() ? "" : ", and one more that it shares"));
  }
  if (!report->ranks->shares.empty()) {
    report->reasons.push_back(fmt::format(
        "ranks that have the same head divide what it keeps of prompts among them, {}; in a prompt "
        "the first of them attends for it, and all make its keys",
        report->ranks->copies > 0 ? "by sequences" : "by tokens"));
    if (sequences < report->ranks->copies) {
      report->reasons.push_back(fmt::format(
          "{} {}: for a shared head some ranks then have none, and wait, which the busy share does "
          "not count; by tokens each sequence would be divided",
          sequences,
          sequences == 1 ? "sequence is fewer than copies" : "sequences are fewer than copies"));
    }
  }
  const int here = BudgetSharers(settings), of_disk = DiskSharers(settings);
  report->reasons.push_back(fmt::format(
      "{} ranks share the model, each with 1/{} of every budget of its machine but that "
      "of its GPU{}; bytes are of all, as many as the largest has",
      ranks, here,
      of_disk == here ? ""
                      : fmt::format(", and 1/{} of the disk's, in a session of all", of_disk)));
}

Status OfRanks(const Settings& settings, const Status& error) {
  const int ranks = settings.all_ranks();
  if (ranks == 1 || error.code() != StatusCode::kOutOfBudget) return error;
  const int here = BudgetSharers(settings);
  Message told = {fmt::format(
      "; these are figures of each of {} ranks, which has 1/{} of what is given", ranks, here)};
  if (const int of_disk = DiskSharers(settings); of_disk != here) {
    told += {", of ", Option::kDiskMemory, fmt::format(" 1/{}", of_disk)};
  }
  told += {", by ", settings.ranks > 1 ? Option::kTensorParallel : Option::kLayersOver};
  return error.Within({}, told);
}

}  // namespace headway
