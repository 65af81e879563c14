// Writes the seeds of the fuzzer of session files, for fuzz/session_fuzzer.cc; to be run again when
// the format of session files changes:
//   cmake --build build --target kv_session_seeds && build/src/kv/kv_session_seeds
//   fuzz/corpus/session
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "device/budget.h"
#include "kv/session/slab_file.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/session_model.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

constexpr char kPath[] = "/disk/session";
constexpr int kSeeds = 6;
constexpr uint64_t kTries = 300;  // the smallest file of that many sessions is a seed, too
// The fuzzer builds files around manifests within these.
constexpr int64_t kMostSlabBytes = 1 << 14;
constexpr int64_t kMostSlots = 12;

// What the first byte of an input says of the others.
enum class Input : uint8_t { kManifest = 0, kAround = 1, kFile = 2, kSealed = 3 };

void Write(const std::string& path, Input input, const std::vector<std::byte>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.put(static_cast<char>(input));
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  HEADWAY_CHECK(out.good());
}

struct Session {
  std::vector<std::byte> manifest;
  MemoryEnv::Bytes file;
};

Session Make(uint64_t seed) {
  MemoryEnv env;
  Budget budget("disk", kUnlimited);
  Random random(seed);
  Session session;
  {
    Result<std::unique_ptr<SlabFile>> file =
        CreateSessionAt(&env, kPath, RandomSmallFormat(&random), &budget);
    HEADWAY_CHECK(file.ok());
    SessionModel model(&env, file->get(), &random);
    for (int i = 0; i < 4; ++i) HEADWAY_CHECK(model.Change().ok());
    HEADWAY_CHECK(model.Commit().ok());
    session.manifest = EncodeManifest((*file)->manifest());
  }
  session.file = env.Contents().at(kPath);
  return session;
}

int Main(const std::string& folder) {
  int made = 0;
  Session smallest;
  for (uint64_t seed = 1; seed <= kTries; ++seed) {
    Session session = Make(seed);
    const Result<Manifest> manifest = DecodeManifest(session.manifest, kMostSlots);
    if (!manifest.ok() || manifest->slabs.empty() ||
        manifest->format.slab_bytes() > kMostSlabBytes) {
      continue;
    }
    if (made < kSeeds) {
      const std::string number = std::to_string(made++);
      Write(folder + "/manifest" + number, Input::kManifest, session.manifest);
      Write(folder + "/around" + number, Input::kAround, session.manifest);
    }
    if (smallest.file.empty() || session.file.size() < smallest.file.size()) {
      smallest = std::move(session);
    }
  }
  HEADWAY_CHECK(made == kSeeds);
  Write(folder + "/file", Input::kFile, smallest.file);
  Write(folder + "/sealed", Input::kSealed, smallest.file);
  return 0;
}

}  // namespace
}  // namespace headway::kv

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  return headway::kv::Main(argv[1]);
}
