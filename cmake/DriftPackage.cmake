# Packages by CPack: a .deb for Debian 12 and a tarball (./dev package; or `cpack` in a build folder of the release preset). What is
# in them besides what `cmake --install` has always put there: the built-in pair, the systemd unit, the documents.
if(TARGET drift_program)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/models/" DESTINATION "${CMAKE_INSTALL_DATADIR}/drift/models"
    FILES_MATCHING PATTERN "drift-mini-*.gguf" PATTERN "README.md")
  install(FILES "${PROJECT_SOURCE_DIR}/contrib/grafana/drift.json" DESTINATION "${CMAKE_INSTALL_DATADIR}/drift/grafana")
  install(FILES "${PROJECT_SOURCE_DIR}/contrib/systemd/drift.service" DESTINATION "lib/systemd/system")
  install(FILES README.md CHANGELOG.md SECURITY.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
endif()

set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_PACKAGE_NAME drift)
set(CPACK_PACKAGE_VENDOR "The DRIFT project")
set(CPACK_PACKAGE_CONTACT "The DRIFT project <drift@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Lossless speculative decoding with a memory: program, server and library")
set(package_text "drift decodes with llama.cpp and a small draft model that is recalibrated while it runs; drift serve is an \
OpenAI-compatible server. In the package: the program, libdrift with headers and CMake files, a pair of small models to try it \
with, a systemd unit (installing it starts nothing), documents.")
# llama.cpp is compiled for the instructions of the machine that built it (tools/probe-cpu.sh): whoever installs this must know.
if(DRIFT_LLAMA_CPU_FLAGS)
  string(REGEX MATCHALL "GGML_[A-Z0-9_]+=ON" on "${DRIFT_LLAMA_CPU_FLAGS}")
  list(TRANSFORM on REPLACE "GGML_([A-Z0-9_]+)=ON" "\\1")
  list(JOIN on " " on)
  string(APPEND package_text "\n\nIt needs a processor with: ${on}.")
endif()
set(CPACK_PACKAGE_DESCRIPTION "${package_text}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_FILE_NAME "drift-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # the libraries it runs with, and their versions, are asked from dpkg
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libhwy-dev, libsqlite3-dev, libxxhash-dev")  # to build against libdrift
set(CPACK_PACKAGE_CHECKSUM SHA256)
include(CPack)
