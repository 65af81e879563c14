// A path that the engine does not have: every other segment is attended to by the reference
// kernels, and which ones is decided behind the queries of each layer. The grid of exactness tests
// runs with it (tests/CMakeLists.txt); nothing else knows of it.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/paths/registry.h"
#include "kernels/ref/ref_kernels.h"

namespace headway::testing {
namespace {

// Over all tests of the program.
struct Seen {
  int64_t ranges = 0;
  int64_t closed_layers = 0;
};
Seen seen;

class ReferencePath : public AttentionPath {
 public:
  explicit ReferencePath(const PathParts& parts) : parts_(parts), kernels_(NewRefKernels()) {}

  bool ChoosesByQuery() const override { return true; }

  void Take(int layer, std::vector<SlabRange>* ranges) override {
    EXPECT_EQ(layer, closed_);  // behind the layer before
    std::vector<SlabRange> left;
    for (const SlabRange& range : *ranges) {
      if (range.x || range.slab.segment % 2 == 0) {
        left.push_back(range);
      } else {
        parts_.reads.Add(parts_.number, range.slab);
      }
    }
    *ranges = left;
  }

  Status Attend(int layer, int group) override {
    const StepContext& context = parts_.context;
    while (parts_.reads.IsNext(parts_.number, layer, group)) {
      const kv::SlabRead read = parts_.reads.Peek();
      Result<kv::SlabView> view = parts_.reads.Next();
      if (!view.ok()) return view.status();
      EXPECT_EQ(view->segment, read.segment);
      parts_.board.Flush();  // states of before are there
      std::vector<AttentionItem> items;
      parts_.board.MakeItems(read.entry, context.RunsOf(layer, group), view->keys,
                             RangeOrder::kMoreFollow, &items);
      kernels_->Attend(context.compute, context.format, context.shape.group(),
                       parts_.board.Params(context.WindowOf(layer)), items);
      parts_.reads.Finish(*view);
      ++seen.ranges;
    }
    return OkStatus();
  }

  void BeginStep() override { closed_ = 0; }
  void PagesClosed(int layer) override {
    EXPECT_EQ(layer, closed_);
    ++closed_;
    ++seen.closed_layers;
  }
  void EndStep() override { EXPECT_EQ(closed_, parts_.context.shape.layers); }

 private:
  const PathParts parts_;
  const std::unique_ptr<Kernels> kernels_;
  int closed_ = 0;  // layers of the step
};

const bool registered =
    RegisterPath({.name = "reference",
                  .order = (path_order::kHost + path_order::kRest) / 2,
                  .bytes = NoBytes,
                  .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
                    return std::make_unique<ReferencePath>(parts);
                  }});

// Tests that never came to the path would show nothing.
class Taken : public ::testing::Environment {
 public:
  void TearDown() override {
    EXPECT_TRUE(registered);
    EXPECT_GT(seen.ranges, 0);
    EXPECT_GT(seen.closed_layers, 0);
  }
};
const auto* const taken = ::testing::AddGlobalTestEnvironment(new Taken);

}  // namespace
}  // namespace headway::testing
