#include "engine/session_meeting.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/wire.h"

namespace headway {
namespace {

// Not as bytes: what lies between the fields is not to be told.
template <typename Wire, typename Mark>
void PassFields(Wire& wire, Mark& mark) {
  wire(mark.temporary, mark.offset, mark.value, mark.generation);
}

}  // namespace

Status SessionMeeting::EndedByAnother() {
  ended_by_another_ = true;
  return Status(StatusCode::kCancelled, "another rank has no session");
}

Status SessionMeeting::Agree(bool well, At next) {
  at_ = At::kNowhere;
  const int64_t own = well ? 1 : 0;
  const Result<std::vector<int64_t>> all = group_.Gather({&own, 1});
  if (!all.ok()) return all.status();
  if (std::find(all->begin(), all->end(), 0) != all->end()) return EndedByAnother();
  at_ = next;
  return OkStatus();
}

Status SessionMeeting::Come() { return Agree(true, At::kTogether); }

Status SessionMeeting::Tell(const Result<kv::SessionMark>& own) {
  at_ = At::kNowhere;
  WireWriter words;
  words(own.ok());
  if (own.ok()) PassFields(words, *own);
  const Result<std::string> told = group_.TextOfFirst(words.bytes());
  if (!own.ok()) return own.status();
  if (told.ok()) at_ = At::kTold;
  return told.status();
}

Result<kv::SessionMark> SessionMeeting::MarkOfFirst() {
  at_ = At::kNowhere;
  const Result<std::string> told = group_.TextOfFirst("");
  if (!told.ok()) return told.status();
  WireReader wire(*told);
  bool opened = false;
  wire(opened);
  if (!opened) return EndedByAnother();
  kv::SessionMark mark;
  PassFields(wire, mark);
  at_ = At::kTold;
  return mark;
}

Status SessionMeeting::Opened(const Status& own) {
  const Status all = Agree(own.ok(), At::kNowhere);
  if (own.ok()) return all;
  ended_by_another_ = false;
  return own;
}

void SessionMeeting::Leave() {
  if (at_ == At::kNowhere) return;
  // What fails in these is the group's end, which each rank hears of by itself.
  if (at_ == At::kArranged) {
    (void)Agree(false, At::kNowhere);
  } else if (at_ == At::kTogether && group_.rank() == 0) {
    (void)Tell(Status(StatusCode::kCancelled, "rank 0 has no session"));
  } else if (at_ == At::kTogether) {
    (void)MarkOfFirst();
  }
  if (at_ == At::kTold) (void)Agree(false, At::kNowhere);
  ended_by_another_ = false;
}

}  // namespace headway
