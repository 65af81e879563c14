#include "base/user_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

namespace headway {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string UserCachePath(const std::string& name) {
  std::string folder = Variable("XDG_CACHE_HOME");
  if (folder.empty()) {
    folder = Variable("HOME");
    if (folder.empty()) return "";
    folder += "/.cache";
  }
  return folder + "/headway/" + name;
}

Status WriteUserCache(Env& env, const std::string& path, const std::string& text) {
  if (path.empty()) return Status(StatusCode::kNotFound, "neither XDG_CACHE_HOME nor HOME is set");
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return Status(StatusCode::kIo, path + ": " + error.message());
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  Status written = WriteTextFile(env, temporary, text);
  if (written.ok()) written = env.Rename(temporary, path);
  if (!written.ok()) (void)env.Remove(temporary);
  return written;
}

Status WriteTextFile(Env& env, const std::string& path, std::string text) {
  Result<std::unique_ptr<File>> file = env.Open(path, OpenMode::kCreate, FileIo::kCached);
  if (!file.ok()) return file.status();
  const IoPiece piece{reinterpret_cast<std::byte*>(text.data()), text.size(), 0};
  if (Status s = (*file)->Write({&piece, 1}); !s.ok()) return s;
  return (*file)->Sync();
}

}  // namespace headway
