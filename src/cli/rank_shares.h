// How busy ranks are that wait for each other in every layer.
#ifndef HEADWAY_CLI_RANK_SHARES_H_
#define HEADWAY_CLI_RANK_SHARES_H_

#include <string>
#include <vector>

namespace headway::cli {

// [ranks][layers]: seconds that each rank attends.
using AttendTimes = std::vector<std::vector<double>>;

// Of the time that the last rank of each layer attends, what each rank does (FairKV's utilisation).
struct RankShares {
  std::vector<double> ranks;                // over all layers
  std::vector<std::vector<double>> layers;  // [layers][ranks]; 0 where none attends
  double all = 0.0;                         // the mean of the ranks
  double least_layer = 0.0;                 // the mean of the ranks in the layer that has least
};

// Of no ranks where there is one alone, or none was timed.
RankShares SharesOf(const AttendTimes& times);

// "ranks attend 100.0/97.1% (98.6%, a layer 91.2% or more)"; empty of no ranks.
std::string RankSharesText(const RankShares& shares);
// A line a layer; empty of no ranks.
std::string RankSharesTable(const RankShares& shares);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_RANK_SHARES_H_
