// Changes a session and commits, for ever: what the kill test kills. Prints the number of each
// commit when it is done.
// With a third argument it is of what heads keep.
//   session_writer PATH SEED [kept]
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/env.h"
#include "base/random.h"
#include "device/budget.h"
#include "kv/session/slab_file.h"
#include "kv/testing/session_model.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

int Fail(const Status& status) {
  std::fprintf(stderr, "session_writer: %s\n", status.message().c_str());
  return 1;
}

int Main(const std::string& path, uint64_t seed, bool kept) {
  Env* const env = Env::Default();
  Budget budget("disk-memory", kUnlimited);
  Random random(seed);
  // One format for all lives.
  Random format_random(99);
  CacheFormat format = RandomSmallFormat(&format_random);
  format.group_heads = 1;
  format.window.clear();
  format.page.page_slots = kept ? 8 : 7;
  Result<std::unique_ptr<SlabFile>> file = env->Exists(path)
                                               ? OpenSessionAt(env, path, &budget)
                                               : CreateSessionAt(env, path, format, &budget);
  if (!file.ok()) return Fail(file.status());
  SessionModel model(env, file->get(), &random);
  Status status = model.Load();
  while (status.ok()) {
    status = model.Change();
    if (!status.ok() || random.Below(2) == 0) continue;
    status = model.Commit();
    if (!status.ok()) break;
    const uint64_t count = (*file)->manifest().weights_hash;
    if (write(STDOUT_FILENO, &count, sizeof(count)) != sizeof(count)) return 0;
  }
  return Fail(status);
}

}  // namespace
}  // namespace headway::kv

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  return headway::kv::Main(argv[1], std::strtoull(argv[2], nullptr, 10), argc == 4);
}
