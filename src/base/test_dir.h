// A directory for one test, gone with the object.
#ifndef HEADWAY_BASE_TEST_DIR_H_
#define HEADWAY_BASE_TEST_DIR_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace headway {

class TestDir {
 public:
  TestDir() : path_(std::filesystem::temp_directory_path() / "headway-test-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot create " << path_;
  }
  ~TestDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDir(const TestDir&) = delete;
  TestDir& operator=(const TestDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Changes one bit of the byte at `at` of a file, which keeps its size.
inline void FlipBit(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

}  // namespace headway

#endif  // HEADWAY_BASE_TEST_DIR_H_
