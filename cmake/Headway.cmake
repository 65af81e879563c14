# Build rules shared by every room.
include(GNUInstallDirs)

# Paths below this folder are made relative, so that build folders share what ccache keeps; of what
# includes precompiled headers it keeps nothing unless it may take them for their contents.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(HEADWAY_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
                       CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HEADWAY_LAUNCHER})
endif()

# Line tables are enough for stack traces, and build faster than full debug information.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

add_library(headway_flags INTERFACE)
target_compile_options(headway_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror>
  # GCC collects its own garbage all along otherwise, for a sixth of the time that a file takes.
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-expand=300 --param ggc-min-heapsize=400000>"
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -Werror=all-warnings>)
target_include_directories(headway_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
if(HEADWAY_SANITIZE)
  # GCC 12 takes its own checks in std::regex for uses of what is not initialised; clang does not
  # know that warning.
  target_compile_options(headway_flags INTERFACE -fsanitize=${HEADWAY_SANITIZE} -fno-omit-frame-pointer
                                                 $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(headway_flags INTERFACE -fsanitize=${HEADWAY_SANITIZE})
  # Sanitizers slow programs down tenfold and more; tests that bound a time take that into account.
  target_compile_definitions(headway_flags INTERFACE HEADWAY_SANITIZED)
endif()
if(HEADWAY_FUZZ)
  # Coverage in the rooms themselves: without it a fuzzer mutates blindly.
  target_compile_options(headway_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(headway_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# The longest tests take 5 to 10 minutes on two cores, which may be slow ones.
set(HEADWAY_TEST_SECONDS 1800)
if(HEADWAY_SANITIZE)
  set(HEADWAY_TEST_SECONDS 3600)
endif()

# headway_library(NAME SOURCES ... DEPS ...): the target of one room or of one folder of a room.
# DEPS names the other targets that its files include; the layer check holds it to the table.
function(headway_library NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${NAME} STATIC ${ARG_SOURCES})
  target_link_libraries(${NAME} PUBLIC headway_flags ${ARG_DEPS})
endfunction()

# Tests spend their time in the rooms; they themselves are compiled in two thirds of the time so. GCC 12
# does not know a precompiled header's functions for a system's, in which it finds what is not there.
set(HEADWAY_TEST_OPTIONS $<$<COMPILE_LANGUAGE:CXX>:-O1>
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow>")

# headway_test(NAME SOURCES ... DEPS ...): one GoogleTest program, registered with ctest. LABELS as
# ctest takes them; with `cuda` among them it needs a GPU, and the target cuda_tests builds it, too.
function(headway_test NAME)
  if(NOT HEADWAY_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE headway_flags ${ARG_DEPS} GTest::gtest GTest::gmock)
  target_link_libraries(${NAME} PRIVATE $<FILTER:$<TARGET_OBJECTS:headway_test_cache>,INCLUDE,own_cache>)
  target_precompile_headers(${NAME} REUSE_FROM headway_test_cache)
  target_compile_options(${NAME} PRIVATE ${HEADWAY_TEST_OPTIONS})
  target_compile_definitions(${NAME} PRIVATE HEADWAY_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${NAME} COMMAND ${NAME})
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${HEADWAY_TEST_SECONDS} LABELS "${ARG_LABELS}")
  if("cuda" IN_LIST ARG_LABELS)
    target_sources(${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/src/device/cuda/cuda_test_main.cc)
    target_link_libraries(${NAME} PRIVATE CUDA::cudart_static)
    set_tests_properties(${NAME} PROPERTIES SKIP_RETURN_CODE 77)
    add_dependencies(cuda_tests ${NAME})
  else()
    target_link_libraries(${NAME} PRIVATE GTest::gtest_main)
  endif()
endfunction()

# headway_fuzzer(NAME SOURCES ... DEPS ...): one libFuzzer program, built by the preset `fuzz` only,
# with the others by its target fuzzers.
function(headway_fuzzer NAME)
  if(NOT HEADWAY_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE headway_flags ${ARG_DEPS})
  target_compile_options(${NAME} PRIVATE -fsanitize=fuzzer)
  target_link_options(${NAME} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${NAME})
endfunction()
