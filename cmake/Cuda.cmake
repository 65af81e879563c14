# What a build for NVIDIA GPUs needs beside the others: nvcc, cuBLASLt, and the headers of cuDNN and
# of its frontend. `scripts/setup.sh --cuda` puts into .deps/ what the machine lacks. cuDNN itself is
# loaded at run time.
set(HEADWAY_DEPS ${PROJECT_SOURCE_DIR}/.deps)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # A100, RTX 30, RTX 40, H100; newer ones compile the last when they load it.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90)
endif()
# The first compiler of CUDA 13, in the order in which scripts/setup_cuda.sh looks: a distribution's
# own nvcc, in PATH, is often older.
if(NOT DEFINED CMAKE_CUDA_COMPILER)
  find_program(HEADWAY_PATH_NVCC nvcc)
  foreach(nvcc $ENV{CUDACXX} /usr/local/cuda/bin/nvcc ${HEADWAY_PATH_NVCC} ${HEADWAY_DEPS}/cuda/bin/nvcc)
    execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE version ERROR_QUIET)
    if(version MATCHES "release ([0-9]+)\\." AND CMAKE_MATCH_1 GREATER_EQUAL 13)
      set(CMAKE_CUDA_COMPILER ${nvcc})
      break()
    endif()
  endforeach()
  if(NOT DEFINED CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "no nvcc of CUDA 13 here; run `scripts/setup.sh --cuda`, or set CUDACXX to one")
  endif()
endif()
enable_language(CUDA)
# CMake 3.25 does not know that this compiler has the dialect.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo -DNDEBUG")
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${HEADWAY_LAUNCHER})
endif()
find_package(CUDAToolkit 13 REQUIRED)
find_path(HEADWAY_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${HEADWAY_DEPS}/include)
find_path(HEADWAY_CUDNN_FRONTEND cudnn_frontend.h HINTS ${HEADWAY_DEPS}/include)
if(NOT HEADWAY_CUDNN_INCLUDE OR NOT HEADWAY_CUDNN_FRONTEND)
  message(FATAL_ERROR "headers of cuDNN or of its frontend are missing; run `scripts/setup.sh --cuda`")
endif()
# Programs of the build folder load cuDNN from where its headers are, if that is here.
if(HEADWAY_CUDNN_INCLUDE STREQUAL "${HEADWAY_DEPS}/include")
  set(CMAKE_BUILD_RPATH ${HEADWAY_DEPS}/cuda/lib)
endif()
# And installed ones load NVIDIA's libraries from where they were linked.
if(NOT DEFINED CMAKE_INSTALL_RPATH_USE_LINK_PATH)
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
endif()

add_custom_target(cuda_tests)
