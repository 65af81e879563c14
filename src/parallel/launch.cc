#include <charconv>
#include <cstdlib>
#include <cstring>

#include "parallel/process_group.h"

namespace headway {
namespace {

// A number of the environment; empty where there is none.
std::optional<int> NumberOf(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, value);
  if (error != std::errc() || last != end) return std::nullopt;
  return value;
}

}  // namespace

std::optional<Launch> LaunchOfProcess() {
  // Open MPI's mpirun, and PMIx under Slurm.
  constexpr struct {
    const char *rank, *processes;
  } kLaunchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                    {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& launcher : kLaunchers) {
    const std::optional<int> rank = NumberOf(launcher.rank);
    const std::optional<int> processes = NumberOf(launcher.processes);
    if (rank.has_value() && processes.has_value()) return Launch{*rank, *processes};
  }
  return std::nullopt;
}

}  // namespace headway
