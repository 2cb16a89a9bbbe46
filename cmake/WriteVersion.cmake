# cmake -DSOURCE=... -DOUTPUT=... -DDRIFT_VERSION=... -P WriteVersion.cmake: writes version.cpp, only if it changed.
set(DRIFT_COMMIT "")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND "${GIT}" rev-parse --show-toplevel WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE top
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(here "${SOURCE}" REALPATH)
  # A copy of the sources inside somebody else's checkout must not show that one's commit.
  if("${top}" STREQUAL "${here}")
    execute_process(COMMAND "${GIT}" describe --always --dirty --exclude=* --abbrev=9 WORKING_DIRECTORY "${SOURCE}"
      OUTPUT_VARIABLE DRIFT_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
configure_file("${SOURCE}/cmake/version.cpp.in" "${OUTPUT}" @ONLY)
