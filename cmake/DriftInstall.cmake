# The installed package: libdrift, its headers, drift-config.cmake (target drift::drift), drift.pc. (cli/ installs the program itself.)
include(CMakePackageConfigHelpers)

install(TARGETS drift EXPORT drift-targets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/drift" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" PATTERN "*-inl.*" EXCLUDE
  PATTERN "testing" EXCLUDE PATTERN "testing.hpp" EXCLUDE PATTERN "*_impl.hpp" EXCLUDE PATTERN "store_*.hpp" EXCLUDE
  PATTERN "sqlite" EXCLUDE)
install(FILES LICENSE THIRD_PARTY.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/drift")
install(EXPORT drift-targets NAMESPACE drift:: DESTINATION "${package_dir}")
get_target_property(drift_type drift TYPE)
if(drift_type STREQUAL "STATIC_LIBRARY")
  set(DRIFT_IS_STATIC ON)
else()
  set(DRIFT_IS_STATIC OFF)
endif()
configure_package_config_file(cmake/drift-config.cmake.in "${PROJECT_BINARY_DIR}/drift-config.cmake"
  INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a new minor version may change the C++ headers.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/drift-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/drift-config.cmake" "${PROJECT_BINARY_DIR}/drift-config-version.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindxxHash.cmake" DESTINATION "${package_dir}")

# drift.pc finds its prefix from where it lies, so the installed tree may be moved.
file(RELATIVE_PATH pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(cmake/drift.pc.in "${PROJECT_BINARY_DIR}/drift.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/drift.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
