# drift_vendor: the libraries that come with llama.cpp's source, in ${drift_vendor_folder}: <nlohmann/json.hpp>, and cpp-httplib, which
# the server compiles.
# Only the programs use them, never libdrift. Absent (no ./dev setup yet), the target is not made.
# With a system llama.cpp the system's nlohmann/json (Debian: nlohmann-json3-dev) serves as well.
if(NOT TARGET drift_vendor)
  if(EXISTS "${DRIFT_DEPS_DIR}/vendor/nlohmann/json.hpp")
    set(drift_vendor_folder "${DRIFT_DEPS_DIR}/vendor")
  else()
    find_path(drift_vendor_folder nlohmann/json.hpp NO_CACHE)
  endif()
  if(drift_vendor_folder)
    add_library(drift_vendor INTERFACE)
    target_include_directories(drift_vendor SYSTEM INTERFACE "${drift_vendor_folder}")
  endif()
endif()
