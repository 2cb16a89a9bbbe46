// mutant.hpp - deliberate holes in what keeps tenants apart, closed in every normal build.
//
// As drift/base/mutant.hpp, for the server: a test of isolation is worth something if it fails with its guard gone. Built with
// -DDRIFT_SERVER_MUTANTS the variable DRIFT_SERVER_MUTANT names the one that is open, so that one build serves for all of them; `./dev
// mutants` opens each and prints which test saw it. Cost in a normal build: none (constexpr false).
#pragma once

#ifdef DRIFT_SERVER_MUTANTS
#include <cstdlib>
#include <string_view>
#endif

namespace drift::server {

enum class Hole {
  kNone,
  kBankWithoutTenant,  // a bank is found by its name alone, whosever it is
  kSharedUnasked,      // banks of tenants who do not share are looked up by others
  kSaltedBorrows,      // the private part of a bank looks up what others share
  kDeletedGainsStay,   // what was earned with another's bank stays when that is deleted
  kEvictsOthers,       // a tenant with too many banks open drops another tenant's
  kTextAcrossTenants,  // a slot's text is gone on with by another tenant
};

#ifdef DRIFT_SERVER_MUTANTS
// Its name, as the variable has it.
#define DRIFT_HOLE(which) (::drift::server::is_open_hole(#which))
inline bool is_open_hole(std::string_view name) {
  static const char* const wanted = std::getenv("DRIFT_SERVER_MUTANT");
  return wanted != nullptr && name == wanted;
}
#else
#define DRIFT_HOLE(which) (::drift::server::Hole::which == ::drift::server::Hole::kNone)
#endif

}  // namespace drift::server
