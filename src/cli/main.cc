#include <cstdio>

#include "cli/commands.h"
#include "cli/console.h"

int main(int argc, char** argv) {
  headway::cli::Console console(stdin, stdout, stderr);
  const headway::cli::Args args(argv + (argc > 0 ? 1 : 0), argv + argc);
  return headway::cli::Main(args, console);
}
