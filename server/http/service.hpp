// service.hpp - everything the routes need once the models are loaded, and a request made ready for the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "server/api/request.hpp"
#include "server/schedule/scheduler.hpp"
#include "server/text_model.hpp"

namespace drift::server {

// What /v1/models and /props say of the target.
struct ModelCard {
  std::string path, name, arch;
  std::int64_t created = 0;
  std::size_t vocab = 0, hidden_width = 0, trained_context = 0;
  std::uint64_t weight_bytes = 0;
  std::string draft_path, draft_name;  // empty: no draft
};

struct Service {
  Scheduler& scheduler;
  const TextModel& text;
  Banks& banks;
  api::Defaults defaults;
  ModelCard card;
  std::size_t context = 0;  // tokens a slot may hold
  int slots = 0;
  spec::JudgeRule judge = spec::JudgeRule::kMatch;
  propose::CopyConfig copy;
};

// Tokenizes, checks against the context, finds the bank, and gives every answer its share of the seed. A request without a seed
// gets a random one. Fails with the problem to answer with.
std::variant<std::vector<GenerationConfig>, api::Problem> prepare(api::GenerateRequest& request, Service& service,
                                                                  const std::string& tenant);

}  // namespace drift::server
