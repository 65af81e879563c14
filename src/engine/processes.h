// What engines and contexts know of ranks in processes: the group that this process has joined, and
// how the first rank has the others take part.
#ifndef HEADWAY_ENGINE_PROCESSES_H_
#define HEADWAY_ENGINE_PROCESSES_H_

#include <cstdint>
#include <functional>
#include <string>

#include "engine/settings.h"
#include "headway/status.h"
#include "parallel/process_group.h"

namespace headway {

// Null where this process was started alone.
ProcessGroup* JoinedProcesses();

// Each rank does its own work of an order. The first one gives the order, whose text the others
// obey by calls of the same function, in which they work at once.
Status Together(ProcessGroup& group, const std::string& order, const std::function<Status()>& work);

// By which the ranks know an engine or a context of the first one.
int64_t NewSharedId();

// What the rank of this process is made with: SettingsOfRank, with a GPU of its own machine, and
// where no number of threads is given, its share of the cores that it may use.
Settings SettingsOfProcess(const Settings& settings, const ProcessGroup& group);

// Whether there are as many processes as ranks.
Status CheckProcesses(const ProcessGroup* group, const Settings& settings);

}  // namespace headway

#endif  // HEADWAY_ENGINE_PROCESSES_H_
