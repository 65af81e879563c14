#include "cli/rank_shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/check.h"

namespace headway::cli {
namespace {

double Mean(const std::vector<double>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

}  // namespace

RankShares SharesOf(const AttendTimes& times) {
  RankShares shares;
  if (times.size() < 2) return shares;
  double waited = 0.0;  // for the last ranks of all layers
  std::vector<double> attended(times.size());
  for (size_t layer = 0; layer < times[0].size(); ++layer) {
    double last = 0.0;
    for (const std::vector<double>& of_rank : times) {
      HEADWAY_CHECK(of_rank.size() == times[0].size());
      last = std::max(last, of_rank[layer]);
    }
    waited += last;
    std::vector<double>& of_layer = shares.layers.emplace_back(times.size());
    for (size_t rank = 0; rank < times.size(); ++rank) {
      attended[rank] += times[rank][layer];
      if (last > 0.0) of_layer[rank] = times[rank][layer] / last;
    }
  }
  if (waited == 0.0) return {};
  shares.ranks = attended;
  for (double& share : shares.ranks) share /= waited;
  shares.all = Mean(shares.ranks);
  shares.least_layer = 1.0;
  for (const std::vector<double>& of_layer : shares.layers) {
    if (const double mean = Mean(of_layer); mean > 0.0) {
      shares.least_layer = std::min(shares.least_layer, mean);
    }
  }
  return shares;
}

std::string RankSharesText(const RankShares& shares) {
  std::string text;
  for (const double share : shares.ranks) {
    text += fmt::format("{}{:.1f}", text.empty() ? "ranks attend " : "/", 100.0 * share);
  }
  if (text.empty()) return text;
  return text + fmt::format("% ({:.1f}%, a layer {:.1f}% or more)", 100.0 * shares.all,
                            100.0 * shares.least_layer);
}

std::string RankSharesTable(const RankShares& shares) {
  if (shares.ranks.empty()) return "";
  std::string text = "  layer   all";
  for (size_t rank = 0; rank < shares.ranks.size(); ++rank) {
    text += fmt::format("  {:>7}", fmt::format("rank {}", rank));
  }
  text += "\n";
  for (size_t layer = 0; layer < shares.layers.size(); ++layer) {
    text += fmt::format("  {:>5}{:>6.1f}", layer, 100.0 * Mean(shares.layers[layer]));
    for (const double share : shares.layers[layer])
      text += fmt::format("  {:>7.1f}", 100.0 * share);
    text += "\n";
  }
  return text;
}

}  // namespace headway::cli
