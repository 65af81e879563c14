// A Console whose ends a test holds.
#ifndef HEADWAY_CLI_TEST_CONSOLE_H_
#define HEADWAY_CLI_TEST_CONSOLE_H_

#include <cstdio>
#include <string>

#include "base/check.h"
#include "cli/console.h"

namespace headway::cli {

class TestConsole {
 public:
  // `input` is what standard input has.
  explicit TestConsole(const std::string& input = "")
      : in_(FileWith(input)), out_(FileWith("")), err_(FileWith("")), console_(in_, out_, err_) {}
  ~TestConsole() {
    for (std::FILE* file : {in_, out_, err_}) std::fclose(file);
  }
  TestConsole(const TestConsole&) = delete;
  TestConsole& operator=(const TestConsole&) = delete;

  Console& console() { return console_; }
  std::string out() { return Read(out_); }
  std::string err() { return Read(err_); }

 private:
  static std::FILE* FileWith(const std::string& text) {
    std::FILE* file = std::tmpfile();
    HEADWAY_CHECK(file != nullptr);
    HEADWAY_CHECK(std::fwrite(text.data(), 1, text.size(), file) == text.size());
    std::rewind(file);
    return file;
  }
  static std::string Read(std::FILE* file) {
    std::rewind(file);
    std::string text;
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
    return text;
  }

  std::FILE* in_;
  std::FILE* out_;
  std::FILE* err_;
  Console console_;
};

}  // namespace headway::cli

#endif  // HEADWAY_CLI_TEST_CONSOLE_H_
