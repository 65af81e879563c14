// StopMatcher: ends a text at the first of some stop strings, and holds back what may yet become
// one.
#ifndef HEADWAY_ENGINE_STOP_MATCHER_H_
#define HEADWAY_ENGINE_STOP_MATCHER_H_

#include <string>
#include <string_view>
#include <vector>

namespace headway {

class StopMatcher {
 public:
  // Empty strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops);

  // Appends text; returns what can be shown now. After stopped(), nothing more comes.
  std::string Feed(std::string_view text);
  // The text held back, when no more will come.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STOP_MATCHER_H_
