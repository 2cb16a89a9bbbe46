# Configures the project against a llama.cpp that CMake finds on the system: the pinned commit is taken, any other refused.
# -DSOURCE= -DWORK= -DGENERATOR= -DC_COMPILER= -DCXX_COMPILER= -DDEPS=<the set-up folder, whose build plays the system's>
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
file(COPY "${DEPS}/llama" DESTINATION "${WORK}")

function(configure outcome)
  file(REMOVE_RECURSE "${WORK}/build")
  # A folder without a set-up: nothing of it may be needed. The JSON header plays the system's, too.
  execute_process(COMMAND ${CMAKE_COMMAND} -S "${SOURCE}" -B "${WORK}/build" -G "${GENERATOR}" "-DCMAKE_C_COMPILER=${C_COMPILER}"
      "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" -DDRIFT_DEPS_DIR=${WORK}/none "-DCMAKE_INCLUDE_PATH=${DEPS}/vendor"
      -DDRIFT_BUILD_TESTS=OFF -DDRIFT_BUILD_BENCH=OFF ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(outcome STREQUAL "taken" AND NOT status EQUAL 0)
    message(FATAL_ERROR "the pinned llama.cpp was refused (${ARGN}):\n${said}")
  elseif(outcome STREQUAL "refused" AND (status EQUAL 0 OR NOT said MATCHES "DRIFT is written for"))
    message(FATAL_ERROR "another llama.cpp was not refused by name (${ARGN}):\n${said}")
  endif()
endfunction()

configure(taken "-DCMAKE_PREFIX_PATH=${WORK}/llama")
configure(taken "-Dllama_DIR=${WORK}/llama/lib/cmake/llama" "-DCMAKE_PREFIX_PATH=${WORK}/llama")
set(config "${WORK}/llama/lib/cmake/llama/llama-config.cmake")
file(READ "${config}" text)
string(REGEX REPLACE "(LLAMA_BUILD_COMMIT +)\"?[0-9a-f]+\"?" "\\1\"fffffff\"" altered "${text}")
if(altered STREQUAL text)
  message(FATAL_ERROR "${config} names no commit")
endif()
file(WRITE "${config}" "${altered}")
configure(refused "-DCMAKE_PREFIX_PATH=${WORK}/llama")
