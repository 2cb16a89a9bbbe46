# PrometheusCore::core: counters, histograms and their text format, without prometheus-cpp's own web server (its CMake package also
# asks for that and for curl).
find_path(PrometheusCore_INCLUDE_DIR prometheus/registry.h)
find_library(PrometheusCore_LIBRARY prometheus-cpp-core)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PrometheusCore REQUIRED_VARS PrometheusCore_LIBRARY PrometheusCore_INCLUDE_DIR)
mark_as_advanced(PrometheusCore_INCLUDE_DIR PrometheusCore_LIBRARY)
if(PrometheusCore_FOUND AND NOT TARGET PrometheusCore::core)
  add_library(PrometheusCore::core UNKNOWN IMPORTED)
  set_target_properties(PrometheusCore::core PROPERTIES
    IMPORTED_LOCATION "${PrometheusCore_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${PrometheusCore_INCLUDE_DIR}")
endif()
