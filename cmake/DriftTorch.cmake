# Finds LibTorch for the optional engines/torch and train/. Debian: libtorch-dev; elsewhere point Torch_DIR or CMAKE_PREFIX_PATH
# at an unpacked LibTorch. Makes the target drift_libtorch: its headers as system headers, its libraries.

if(NOT DRIFT_WITH_LLAMA)
  message(FATAL_ERROR "DRIFT_WITH_TORCH reads and writes GGUF files with llama.cpp's ggml: it needs -DDRIFT_WITH_LLAMA=ON.")
endif()
find_package(Torch CONFIG QUIET)
if(NOT Torch_FOUND)
  message(FATAL_ERROR "DRIFT_WITH_TORCH is ON, but LibTorch was not found (TorchConfig.cmake).\n"
    "Debian 12: apt-get install --no-install-recommends libtorch-dev libopenblas0-openmp. Elsewhere: unpack LibTorch and give "
    "-DCMAKE_PREFIX_PATH=<its folder>. Or build without it: -DDRIFT_WITH_TORCH=OFF.")
endif()
add_library(drift_libtorch INTERFACE)
target_include_directories(drift_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_libraries(drift_libtorch INTERFACE ${TORCH_LIBRARIES})
message(STATUS "LibTorch ${Torch_VERSION} in ${Torch_DIR}")
