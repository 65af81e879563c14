#include "device/trace.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "device/host_stream.h"

namespace headway {
namespace {

TEST(Trace, SumsLanesAndWritesJson) {
  Trace trace;
  trace.Add(Lane::kCompute, {"ignored event", 1, 1}, {}, 0, 5);
  trace.Add(Lane::kHostToDevice, {"copy long before", 0, 0}, {}, -10000, -8000);
  trace.Add(Lane::kHostToDevice, {"copy just before", 0, 0}, {}, -2000, 0);
  const Trace::Number numbers[] = {{"found", 3}, {"brought", 1}};
  trace.Count("ignored graph", 0, numbers);
  trace.EnableEvents();
  trace.Count("chosen", 4000, numbers);
  trace.Add(Lane::kHostToDevice, {"copy", 4000, 0}, {}, 1000, 3000);
  trace.Add(Lane::kCompute, {"linear", 10, 700}, {2, false}, 2000, 4000);
  EXPECT_EQ(trace.totals(Lane::kCompute).busy_ns, 2005);
  EXPECT_EQ(trace.totals(Lane::kCompute).flops, 701);
  EXPECT_EQ(trace.totals(Lane::kHostToDevice).bytes, 4000);
  EXPECT_EQ(trace.totals(Lane::kHostToDevice).busy_ns, 7000);  // with a pause of 1000

  const std::string path = testing::TempDir() + "/trace_test.json";
  ASSERT_TRUE(trace.Write(*Env::Default(), path).ok());
  Result<std::string> text = Env::Default()->ReadFile(path);
  ASSERT_TRUE(text.ok());
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << *text;
  int complete = 0, graphs = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "C") {
      ++graphs;
      EXPECT_EQ(event["name"], "chosen");
      EXPECT_EQ(event["args"], nlohmann::json({{"found", 3}, {"brought", 1}}));
      EXPECT_DOUBLE_EQ(event["ts"], 3.0);  // behind the first event
    }
    if (event["ph"] != "X") continue;
    ++complete;
    if (event["name"] == "copy") {
      EXPECT_DOUBLE_EQ(event["args"]["GB/s"], 2.0);
    } else {
      EXPECT_EQ(event["args"]["layer"], 2);
    }
  }
  EXPECT_EQ(complete, 2);
  EXPECT_EQ(graphs, 1);
  trace.Add(Lane::kCompute, {"attend", 1, 1}, {2, true}, 4000, 4300);
  trace.Add(Lane::kHostCompute, {"attend blocks", 1, 1}, {2, true}, 4000, 4050);
  trace.Add(Lane::kCompute, {"attend", 1, 1}, {0, true}, 4300, 4310);
  trace.Add(Lane::kCompute, {"attend", 1, 1}, {}, 4310, 4400);  // of no layer: of another model
  trace.Add(Lane::kCompute, {"merge", 1, 1}, {3, true}, 4400, 4500);
  trace.Add(Lane::kCompute, {"attend", 1, 1}, {1, false}, 4500, 4507);
  trace.ResetTotals();
  EXPECT_EQ(trace.totals(Lane::kCompute).busy_ns, 0);
  EXPECT_EQ(trace.attend_ns(true), (std::vector<int64_t>{10, 0, 350}));
  EXPECT_EQ(trace.attend_ns(false), (std::vector<int64_t>{0, 7}));
}

// A lane may come to it when the step is far ahead.
TEST(Trace, WorkIsOfThePlaceAtWhichItWasGiven) {
  Trace trace;
  const Result<std::unique_ptr<Stream>> stream =
      HostStream::Create(Env::Default(), &trace, Lane::kHostCompute);
  ASSERT_TRUE(stream.ok());
  std::promise<void> ahead;
  trace.Begin({.layer = 3, .decode = true});
  (*stream)->HostWork({"attend", 1, 1}, [&] {
    ahead.get_future().wait();
    return OkStatus();
  });
  trace.Begin({.layer = 5, .decode = false});
  ahead.set_value();
  ASSERT_TRUE((*stream)->Synchronize().ok());
  ASSERT_EQ(trace.attend_ns(true).size(), 4u);
  EXPECT_GT(trace.attend_ns(true)[3], 0);
  EXPECT_TRUE(trace.attend_ns(false).empty());
}

}  // namespace
}  // namespace headway
