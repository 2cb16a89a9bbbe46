// noise.hpp - how far batch shape alone moves the target: the yardstick of divergence.hpp, measured in the same run.
//
// Threads: the engine's. Cost: the text once through the target in blocks of `rows`.
#pragma once

#include <span>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"
#include "drift/engine/engine.hpp"
#include "drift/spec/distribution.hpp"
#include "drift/trace/event.hpp"

namespace drift::cli {

// Feeds prompt and text to the target, the text in blocks of `rows` tokens with a row each, and appends to `changes` how
// far each row moved from the one-token decode `margins` were recorded in. `vocab`: tokens both models know.
// Requires: text.size() == margins.size(). Fails as Engine::open and forward; `changes` may then have grown.
Status measure_noise(engine::Engine& target, std::span<const Token> prompt, std::span<const Token> text,
                     std::span<const trace::Margin> margins, const spec::SamplerConfig& sampler, std::size_t vocab,
                     std::size_t rows, std::vector<double>& changes);

}  // namespace drift::cli
