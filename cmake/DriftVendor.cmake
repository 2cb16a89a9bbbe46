# drift_vendor: the single-header libraries that come with llama.cpp's source: <nlohmann/json.hpp>, <cpp-httplib/httplib.h>.
# Only the programs use them, never libdrift. Absent (no ./dev setup yet), the target is not made.
if(NOT TARGET drift_vendor AND EXISTS "${DRIFT_DEPS_DIR}/vendor/nlohmann/json.hpp")
  add_library(drift_vendor INTERFACE)
  target_include_directories(drift_vendor SYSTEM INTERFACE "${DRIFT_DEPS_DIR}/vendor")
endif()
