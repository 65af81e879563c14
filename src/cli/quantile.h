// Quantiles of what was measured.
#ifndef HEADWAY_CLI_QUANTILE_H_
#define HEADWAY_CLI_QUANTILE_H_

#include <vector>

namespace headway::cli {

// The number below which a share of the numbers lies, between two of them where it must be; 0 of
// none.
double Quantile(std::vector<double> numbers, double share);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_QUANTILE_H_
