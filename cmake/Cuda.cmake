# What a build for NVIDIA GPUs needs beside the others: nvcc, cuBLASLt, and the headers of cuDNN and
# of its frontend (scripts/setup.sh --cuda gets those). cuDNN itself is loaded at run time.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # A100, RTX 30, RTX 40, H100; newer ones compile the last when they load it.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90)
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
enable_language(CUDA)
# CMake 3.25 does not know that this compiler has the dialect.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo -DNDEBUG")
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
find_package(CUDAToolkit 13 REQUIRED)
find_path(HEADWAY_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
  ${PROJECT_SOURCE_DIR}/.deps/include REQUIRED)
find_path(HEADWAY_CUDNN_FRONTEND cudnn_frontend.h HINTS ${PROJECT_SOURCE_DIR}/.deps/include REQUIRED)
