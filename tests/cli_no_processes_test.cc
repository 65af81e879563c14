// What the program says under a launcher of MPI when it is built without MPI.
#include "support/cli.h"

namespace headway {
namespace {

TEST_F(Cli, ALauncherOfMpiNeedsMpi) {
  const Args run = {"run", kModel, "-p", "Once upon a time", "-n", "2", "--tp", "2"};
  in_child_ = [] {
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  };
  ExpectFailure(run, 1, "this build has no MPI");
  in_child_ = [] {
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  };
  const Outcome silent = Run(run);
  EXPECT_EQ(silent.out + silent.err, "");
}

}  // namespace
}  // namespace headway
