#include "engine/paths/slabs.h"

namespace headway {
namespace {

class SlabsPath : public AttentionPath {
 public:
  explicit SlabsPath(const PathParts& parts) : parts_(parts) {}

  void Take(int /*layer*/, std::vector<SlabRange>* ranges) override {
    for (const SlabRange& range : *ranges) parts_.reads.Add(parts_.number, range.slab);
    ranges->clear();
  }

  Status Attend(int layer, int group) override {
    Reads& reads = parts_.reads;
    if (reads.resident()) {
      if (group == 0) AttendOnDevice(layer);
      return OkStatus();
    }
    while (reads.IsNext(parts_.number, layer, group)) {
      const int entry = reads.Peek().entry;
      Result<kv::SlabView> view = reads.Next();
      if (!view.ok()) return view.status();
      parts_.board.Attend(entry, parts_.context.RunsOf(layer, group), view->keys,
                          RangeOrder::kMoreFollow);
      reads.FinishLater(*view);
      // A prefill state takes its ranges one after the other, and a staging buffer is wanted back;
      // decode items of resident slabs wait to be launched together.
      if (!parts_.batch[entry].decode || view->tier != Tier::kDevice) parts_.board.Flush();
    }
    return OkStatus();
  }

 private:
  // Of all groups, and batches of decodes alone.
  void AttendOnDevice(int layer) {
    for (int entry = 0; entry < parts_.batch.size(); ++entry) {
      for (const kv::ResidentRange& range :
           parts_.context.store.reads().RangesOnDevice(entry, layer)) {
        parts_.board.Attend(entry, parts_.context.RunsOf(layer, range.group), range.keys,
                            RangeOrder::kMoreFollow);
      }
    }
  }

  const PathParts parts_;
};

}  // namespace

const PathKind kSlabsPath = {.name = "slabs",
                             .order = path_order::kRest,
                             .bytes = NoBytes,
                             .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
                               return std::make_unique<SlabsPath>(parts);
                             }};

}  // namespace headway
