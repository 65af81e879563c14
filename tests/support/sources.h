// The project's own sources, for tests that read them.
#ifndef HEADWAY_TESTS_SUPPORT_SOURCES_H_
#define HEADWAY_TESTS_SUPPORT_SOURCES_H_

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace headway::testing {

// C++ and CUDA files under these folders, in order, as paths from the repository's root on.
inline std::vector<std::string> SourceFiles(const std::vector<std::string>& folders) {
  namespace fs = std::filesystem;
  const std::set<std::string> extensions = {".h", ".cc", ".cu", ".cuh"};
  const fs::path root = HEADWAY_SOURCE_DIR;
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file()) continue;
      if (extensions.count(entry.path().extension().string()) == 0) continue;
      files.push_back(fs::relative(entry.path(), root).generic_string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

inline std::string SourcePath(const std::string& file) {
  return std::string(HEADWAY_SOURCE_DIR) + "/" + file;
}

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_SOURCES_H_
