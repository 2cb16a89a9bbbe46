// version.hpp - which DRIFT this is.
//
// Threads: constants.
#pragma once

namespace drift {

// The version, e.g. "0.1.0". It has one home, the project() line of the root CMakeLists.txt.
const char* version();

// The git commit the build was made from, "-dirty" appended when files differed from it; empty outside a git checkout.
const char* commit();

}  // namespace drift
