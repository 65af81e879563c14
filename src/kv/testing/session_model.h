// SessionModel: a cache of random bytes kept in a slab file through random appends, truncations and
// commits, with what must be in the file known at every moment. For tests.
#ifndef HEADWAY_KV_TESTING_SESSION_MODEL_H_
#define HEADWAY_KV_TESTING_SESSION_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/env.h"
#include "base/random.h"
#include "headway/status.h"
#include "kv/session/aligned_buffer.h"
#include "kv/session/slab_file.h"

namespace headway::kv {

// Formats whose slabs are small, for tests that write many. Models of about half of them are of
// what heads keep.
CacheFormat RandomSmallFormat(Random* random);

// Whether a model of this format is of what heads keep: of those that may be, those with an even
// number of slots.
bool ModelsKept(const CacheFormat& format);

// Reads every slab of the manifest and compares its checksums.
Status VerifySession(Env* env, SlabFile* file, const Manifest& manifest);

class SessionModel {
 public:
  // Starts with what the file's manifest holds. The arguments outlive the model.
  SessionModel(Env* env, SlabFile* file, Random* random);

  Status Load();  // reads the slabs of the manifest
  // One random change. When it fails, the cache is as before.
  Status Change();
  // What is to be committed now. Its weights_hash counts the commits.
  Manifest Describe() const;
  Status Commit() { return file_->Commit(Describe()); }
  // Reads every slab back and compares its bytes.
  Status Verify() const;

 private:
  struct Slab {
    SavedSlab saved;
    std::shared_ptr<AlignedBuffer> bytes;
    bool sealed = false;  // it was cut: what comes behind goes to a slot of its own
  };
  using Key = std::tuple<int, int, int>;  // layer, group, segment
  using Slabs = std::map<Key, Slab>;

  Status Append(int64_t pages);
  Status AppendTo(int layer, int group, int64_t from, int64_t to, Slabs* slabs,
                  std::vector<int64_t>* fresh);
  Result<Slab> Write(const Slab* old, int layer, int group, int segment, int pages,
                     std::vector<int64_t>* fresh);
  void Truncate(int64_t pages);
  void FreeUnseen();
  Status Scratch();
  void Replace(Slabs next);

  Env* const env_;
  SlabFile* const file_;
  Random* const random_;
  // What is kept of so many pages, if these are in the slabs.
  SavedKept Kept(int64_t pages) const;

  const CacheFormat format_;
  const bool kept_;
  std::vector<TokenId> tokens_;  // of the pages in the slabs
  Slabs slabs_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TESTING_SESSION_MODEL_H_
