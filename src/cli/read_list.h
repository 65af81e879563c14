// Lists of a command line, divided by commas.
#ifndef HEADWAY_CLI_READ_LIST_H_
#define HEADWAY_CLI_READ_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "headway/status.h"

namespace headway::cli {

std::vector<std::string> SplitAtCommas(const std::string& text);
// "4096,64k,1m": numbers of tokens; k is 1024 and m 1024 times that.
Status ReadLengths(const std::string& text, std::vector<int64_t>* lengths);
// "0,12.5,100".
Status ReadPercents(const std::string& text, std::vector<double>* percents);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_READ_LIST_H_
