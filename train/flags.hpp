// flags.hpp - how the commands of drift-train declare numbers on the command line.
//
// A value that cannot be used becomes a CLI::ValidationError, which main() turns into exit code 2.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/numbers.hpp"
#include "cli/options.hpp"
#include "drift/base/status.hpp"
#include "engines/torch/shape.hpp"
#include "train/optimiser.hpp"

namespace drift::train {

template <class T>
T must(Result<T> result) {
  if (!result.is_ok()) throw CLI::ValidationError(result.status().message());
  return std::move(result).value();
}

// `out` holds the default, and must outlive the app. `open_low`: the lower bound itself is not allowed.
inline CLI::Option* add_real(CLI::App& app, const std::string& flag, double low, double high, bool open_low,
                             const std::string& help, double& out) {
  return app
      .add_option_function<std::string>(
          flag, [=, &out](const std::string& text) { out = must(cli::parse_real(flag, text, low, high, open_low)); }, help)
      ->type_name("X");
}

inline CLI::Option* add_whole(CLI::App& app, const std::string& flag, std::int64_t low, std::int64_t high,
                              const std::string& help, std::int64_t& out) {
  return cli::add_int(app, flag, low, high, fmt::format("{} [{}]", help, out), [&out](std::int64_t value) { out = value; });
}

// --PREFIXwidth, -layers, -heads, -ffn; `whose` begins what --help says of each.
inline void add_shape_options(CLI::App& app, const std::string& prefix, const std::string& whose, engine::ModelShape& shape) {
  add_whole(app, "--" + prefix + "width", 32, 4'096, whose + "width of a hidden state", shape.width);
  add_whole(app, "--" + prefix + "layers", 1, 64, whose + "layers", shape.layers);
  add_whole(app, "--" + prefix + "heads", 1, 64, whose + "attention heads", shape.heads);
  add_whole(app, "--" + prefix + "ffn", 32, 16'384, whose + "width of the feed-forward part", shape.ffn);
}

// --rate-muon, --rate-adam
inline void add_rate_options(CLI::App& app, Rates& rates) {
  add_real(app, "--rate-muon", 0, 1, true, fmt::format("learning rate of matrices [{}]", rates.muon), rates.muon);
  add_real(app, "--rate-adam", 0, 1, true, fmt::format("learning rate of embeddings and norms [{}]", rates.adam), rates.adam);
}

struct StepsFlag {
  const char* name;
  std::int64_t steps;  // 0: not given
};

// Either a time or all the numbers of steps; with these, `further` may be given. Fails with kInvalid.
inline Status check_budget(double minutes, const std::vector<StepsFlag>& needed, const std::vector<StepsFlag>& further = {}) {
  const auto given = [](const StepsFlag& flag) { return flag.steps > 0; };
  const bool any = std::any_of(needed.begin(), needed.end(), given) || std::any_of(further.begin(), further.end(), given);
  if (minutes > 0 && any) return {Code::kInvalid, "--time-budget and --steps-... exclude each other"};
  if (minutes > 0 || std::all_of(needed.begin(), needed.end(), given)) return Status::ok();
  std::string names;
  for (std::size_t i = 0; i < needed.size(); ++i)
    names += (i == 0 ? "" : i + 1 < needed.size() ? ", " : " and ") + std::string(needed[i].name);
  return {Code::kInvalid,
          any ? names + " go together: give all of them" : "say how long to train: --time-budget MINUTES, or " + names};
}

// --seed, --threads, --keep-seconds, --fresh
inline void add_run_options(CLI::App& app, std::uint64_t& seed, int& threads, double& keep_seconds, bool& fresh) {
  cli::add_int(app, "--seed", 0, 1'000'000'000, fmt::format("seed of all that is drawn [{}]", seed),
               [&seed](std::int64_t value) { seed = static_cast<std::uint64_t>(value); });
  cli::add_int(app, "-t,--threads", 1, 2, fmt::format("threads; results repeat exactly for one number of them [{}]", threads),
               [&threads](std::int64_t value) { threads = static_cast<int>(value); });
  add_real(app, "--keep-seconds", 0, 86'400, false, fmt::format("time between two checkpoints [{}]", keep_seconds), keep_seconds);
  app.add_flag("--fresh", fresh, "start anew, whatever checkpoint there is");
}

}  // namespace drift::train
