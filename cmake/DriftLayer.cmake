# drift_layer(<name> [DEPS <layer>...] [LIBS <target>...])
#
# One folder, one target. Sources are the folder's *.cpp without *_test.cpp; the tests beside them become one
# GoogleTest program `<name>_test`. DEPS are other layers (drift_<dep>), LIBS are third-party targets.
# A layer may include headers of its DEPS only: tools/check_includes.py enforces it.
include(GoogleTest)

function(drift_layer name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")

  set(scope PUBLIC)
  if(sources)
    add_library(drift_${name} OBJECT ${sources})
  else()
    add_library(drift_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(drift_${name} ${scope} "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
  target_compile_features(drift_${name} ${scope} cxx_std_20)
  if(sources)
    target_link_libraries(drift_${name} PRIVATE drift_warnings)
  endif()
  foreach(dep ${ARG_DEPS})
    target_link_libraries(drift_${name} ${scope} drift_${dep})
  endforeach()
  target_link_libraries(drift_${name} ${scope} ${ARG_LIBS})
  # Object files do not travel through OBJECT libraries: libdrift is made of this list, and links these third-party targets.
  set_property(GLOBAL APPEND PROPERTY DRIFT_LAYER_LIBS ${ARG_LIBS})
  if(sources)
    set_property(GLOBAL APPEND PROPERTY DRIFT_OBJECT_LAYERS drift_${name})
  endif()

  if(tests AND DRIFT_BUILD_TESTS)
    set_property(GLOBAL APPEND PROPERTY DRIFT_TEST_LAYERS ${name})
    set_property(GLOBAL PROPERTY DRIFT_TESTS_${name} "${tests}")
  endif()
endfunction()

# Call once, after all layers: makes the test programs (they link libdrift, so order does not matter).
function(drift_layer_tests library)
  get_property(layers GLOBAL PROPERTY DRIFT_TEST_LAYERS)
  get_property(libs GLOBAL PROPERTY DRIFT_LAYER_LIBS)
  foreach(name ${layers})
    get_property(tests GLOBAL PROPERTY DRIFT_TESTS_${name})
    drift_test(${name} LABEL unit SOURCES ${tests} LIBS ${library} ${libs})
  endforeach()
endfunction()

# drift_test(<name> LABEL <unit|model|e2e> SOURCES <file>... [LIBS <target>...] [SERIAL])
#
# A GoogleTest program `<name>_test`; its tests appear in ctest as <name>.Suite.Case under the label.
#   unit   needs nothing but the build
#   model  needs model files; where they are missing it skips with GTEST_SKIP and says which
#   e2e    runs the built programs
# SERIAL: no other test runs beside it (for tests that use all cores or much memory).
# The tests are listed when ctest starts, not when the program is linked, so that a build never depends on running
# (sanitizer run-times may refuse to start on some kernels).
function(drift_test name)
  cmake_parse_arguments(ARG "SERIAL" "LABEL" "SOURCES;LIBS" ${ARGN})
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${ARG_LIBS} drift_warnings GTest::gtest GTest::gmock GTest::gtest_main)
  target_include_directories(${name}_test PRIVATE "${PROJECT_SOURCE_DIR}")
  # What is tested keeps its flags; the tests themselves are compiled to be compiled soon (two fifths of the time less).
  if(DRIFT_SANITIZE)
    target_compile_options(${name}_test PRIVATE -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name}_test PRIVATE -O1)
  endif()
  set(properties LABELS ${ARG_LABEL} TIMEOUT 900)
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL ON)
  endif()
  gtest_discover_tests(${name}_test TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
    PROPERTIES ${properties})
endfunction()
