#include "engine/paths/tail.h"

namespace headway {
namespace {

class TailPath : public AttentionPath {
 public:
  explicit TailPath(const PathParts& parts) : parts_(parts) {}

  void Take(int /*layer*/, std::vector<SlabRange>* /*ranges*/) override {}

  Status Attend(int layer, int group) override {
    kv::Store& store = parts_.context.store;
    if (group == store.format().StreamingGroup(layer)) return OkStatus();
    for (int entry = 0; entry < parts_.batch.size(); ++entry) {
      if (parts_.board.ResultTaken(entry)) continue;
      parts_.board.Attend(entry, parts_.context.RunsOf(layer, group),
                          store.step().Tail(entry, layer, group), RangeOrder::kLast);
    }
    return OkStatus();
  }

 private:
  const PathParts parts_;
};

}  // namespace

const PathKind kTailPath = {.name = "tail",
                            .order = path_order::kTail,
                            .bytes = NoBytes,
                            .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
                              return std::make_unique<TailPath>(parts);
                            }};

}  // namespace headway
