// SessionMeeting: where ranks in processes open the session that they share. Once it is arranged
// the others wait there for each of them, so that all come, whatever has failed on the way.
#ifndef HEADWAY_ENGINE_SESSION_MEETING_H_
#define HEADWAY_ENGINE_SESSION_MEETING_H_

#include <cstdint>

#include "headway/status.h"
#include "kv/session/slab_file.h"
#include "parallel/process_group.h"

namespace headway {

// Of one rank, within one Run of the group, which outlives it.
class SessionMeeting {
 public:
  explicit SessionMeeting(ProcessGroup& group) : group_(group) {}

  // On all ranks, or on none: from now on they wait for each other.
  void Arrange() { at_ = At::kArranged; }
  // This rank is there: OK where all are, who go on together then.
  Status Come();
  // Behind that: what the first one has opened, or its error; it tells the others.
  Status Tell(const Result<kv::SessionMark>& own);
  Result<kv::SessionMark> MarkOfFirst();
  // Behind that, where the first one has a session: this rank has opened it, or has not, and what
  // marks it may be written over once all have.
  Status Opened(const Status& own);
  // This rank has failed: the others hear of it where they wait for it, if they still do.
  void Leave();

  // Whether it was another rank's failure that has ended it, of which that one tells.
  bool ended_by_another() const { return ended_by_another_; }

 private:
  // What this rank does next.
  enum class At : uint8_t { kNowhere, kArranged, kTogether, kTold };

  Status Agree(bool well, At next);
  Status EndedByAnother();

  ProcessGroup& group_;
  At at_ = At::kNowhere;
  bool ended_by_another_ = false;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_SESSION_MEETING_H_
