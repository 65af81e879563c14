// The commands of `headway`. Each takes the arguments behind its name and returns the exit status.
#ifndef HEADWAY_CLI_COMMANDS_H_
#define HEADWAY_CLI_COMMANDS_H_

#include "cli/console.h"
#include "cli/flags.h"

namespace headway::cli {

int RunCommand(const Args& args, Console& console);
int ChatCommand(const Args& args, Console& console);
int PlanCommand(const Args& args, Console& console);
int ProbeCommand(const Args& args, Console& console);
int InspectCommand(const Args& args, Console& console);
int PerplexityCommand(const Args& args, Console& console);
int DivergenceCommand(const Args& args, Console& console);
int FileCommand(const Args& args, Console& console);
int RecallCommand(const Args& args, Console& console);
int RetrievalCommand(const Args& args, Console& console);
int ProfileHeadsCommand(const Args& args, Console& console);
int BenchPrefillCommand(const Args& args, Console& console);
int BenchDecodeCommand(const Args& args, Console& console);

// What main does with its arguments behind the program's name.
int Main(const Args& args, Console& console);
// The same where a launcher of MPI may have started more of them, of which each is a rank.
int MainOfProcess(const Args& args, Console& console);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_COMMANDS_H_
