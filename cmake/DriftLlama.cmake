# Finds the llama.cpp that DRIFT is built with and refuses any other: its C structs change from one week to the next, so
# "a newer one" compiles and then corrupts. First the one that ./dev setup built, then what CMake finds on the system.

file(STRINGS "${PROJECT_SOURCE_DIR}/tools/llama-pin.txt" pin_lines REGEX "^commit ")
string(REGEX REPLACE "^commit +" "" DRIFT_LLAMA_COMMIT "${pin_lines}")
string(SUBSTRING "${DRIFT_LLAMA_COMMIT}" 0 9 llama_commit_short)

# find_library results inside llama's own package files are cached: a changed DRIFT_DEPS_DIR must not keep the old library.
if(DEFINED DRIFT_DEPS_DIR_SEEN AND NOT "${DRIFT_DEPS_DIR}" STREQUAL "${DRIFT_DEPS_DIR_SEEN}")
  foreach(stale llama_DIR ggml_DIR llama_LIBRARY GGML_LIBRARY GGML_BASE_LIBRARY GGML_CPU_LIBRARY)
    unset(${stale} CACHE)
  endforeach()
endif()
set(DRIFT_DEPS_DIR_SEEN "${DRIFT_DEPS_DIR}" CACHE INTERNAL "")

find_package(llama CONFIG QUIET PATHS "${DRIFT_DEPS_DIR}/llama" NO_DEFAULT_PATH)
if(NOT llama_FOUND)
  find_package(llama CONFIG QUIET)
endif()
if(NOT llama_FOUND)
  message(FATAL_ERROR "The pinned llama.cpp (${llama_commit_short}) is not in ${DRIFT_DEPS_DIR}/llama.\n"
    "Run ./dev setup, which builds it there; or point -DDRIFT_DEPS_DIR=<folder> (or the environment's DRIFT_DEPS) at the "
    "folder of an earlier set-up; or build without it: -DDRIFT_WITH_LLAMA=OFF.")
endif()

# Its package file gives the commit, short or long: one must begin with the other, and 7 digits are the least that count.
string(LENGTH "${LLAMA_BUILD_COMMIT}" commit_length)
set(commit_matches OFF)
if(commit_length GREATER_EQUAL 7 AND commit_length LESS_EQUAL 40)
  string(SUBSTRING "${DRIFT_LLAMA_COMMIT}" 0 ${commit_length} pinned_prefix)
  if(LLAMA_BUILD_COMMIT STREQUAL pinned_prefix)
    set(commit_matches ON)
  endif()
endif()
if(NOT commit_matches)
  message(FATAL_ERROR "The llama.cpp found in ${llama_DIR} is commit '${LLAMA_BUILD_COMMIT}', but DRIFT is written for "
    "${llama_commit_short} and no other.\n"
    "Run ./dev setup to build that one into ${DRIFT_DEPS_DIR}, or build without it: -DDRIFT_WITH_LLAMA=OFF.")
endif()

# Which kernels were compiled in, as one line of words; tests/cpu_kernels_test compares this with what runs.
set(DRIFT_LLAMA_CPU_FLAGS "")
get_filename_component(llama_prefix "${llama_DIR}/../../.." ABSOLUTE)
if(EXISTS "${llama_prefix}/drift-cpu-flags.txt")
  file(STRINGS "${llama_prefix}/drift-cpu-flags.txt" cpu_flags)
  list(JOIN cpu_flags " " DRIFT_LLAMA_CPU_FLAGS)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${llama_prefix}/drift-cpu-flags.txt")
endif()
message(STATUS "llama.cpp ${LLAMA_BUILD_COMMIT} in ${llama_prefix}; CPU flags: ${DRIFT_LLAMA_CPU_FLAGS}")

# llama-common's chat templates, schemas and parsers, which ./dev setup builds beside it (cmake/llama-common). A llama.cpp from
# elsewhere has none that could be linked: then chat templates are those llama.cpp recognises, and there are no schemas and no tools.
if(NOT TARGET drift_llama_common AND EXISTS "${llama_prefix}/lib/libdrift-llama-common.a")
  add_library(drift_llama_common STATIC IMPORTED)
  set_target_properties(drift_llama_common PROPERTIES IMPORTED_LOCATION "${llama_prefix}/lib/libdrift-llama-common.a"
    INTERFACE_INCLUDE_DIRECTORIES "${llama_prefix}/include/llama-common" INTERFACE_LINK_LIBRARIES llama)
endif()
