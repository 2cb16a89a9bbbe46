// capi.cpp - drift.h over the C++ layers. Nothing throws past this file; every pointer and size is checked here.
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "drift/bank/store.hpp"
#include "drift/base/version.hpp"
#include "drift/drift.h"
#include "drift/recal/recalibrator.hpp"

using drift::Code;
using drift::Result;
using drift::Status;

struct drift_bank {
  std::unique_ptr<drift::recal::Recalibrator> recal;
  struct Position {
    drift::recal::Lookup lookup;
    drift::recal::Bias bias;
    bool observed = false;
  };
  std::vector<Position> positions;  // reused; the first `used` belong to the running step
  std::size_t used = 0;
};

namespace {

thread_local std::string last_error = "no call has failed";

drift_status status_of(Code code) {
  switch (code) {
    case Code::kOk: return DRIFT_OK;
    case Code::kInvalid: return DRIFT_INVALID;
    case Code::kNotFound: return DRIFT_NOT_FOUND;
    case Code::kCorrupt: return DRIFT_CORRUPT;
    case Code::kForeign: return DRIFT_FOREIGN;
    case Code::kBusy: return DRIFT_BUSY;
    case Code::kLimit: return DRIFT_LIMIT;
    case Code::kIo: return DRIFT_IO;
    case Code::kUnsupported: return DRIFT_UNSUPPORTED;
    case Code::kCancelled:
    case Code::kInternal: return DRIFT_INTERNAL;
  }
  return DRIFT_INTERNAL;
}

// Runs `body`, records why it failed, lets no exception out.
template <class Body>
drift_status guarded(Body body) noexcept {
  try {
    const Status status = body();
    if (status.is_ok()) return DRIFT_OK;
    last_error = status.message();
    return status_of(status.code());
  } catch (const std::bad_alloc&) {
    try {
      last_error = "out of memory";
    } catch (...) {
    }
    return DRIFT_IO;
  } catch (const std::exception& e) {
    try {
      last_error = std::string("unexpected: ") + e.what();
    } catch (...) {
    }
    return DRIFT_INTERNAL;
  } catch (...) {
    return DRIFT_INTERNAL;
  }
}

Status missing(const char* what) { return {Code::kInvalid, std::string(what) + " is NULL"}; }

// A struct of an older header is shorter and leaves later fields at their defaults; of a newer one, longer and refused.
template <class T>
Status read_sized(const T* in, const char* what, T& out) {
  if (in == nullptr) return missing(what);
  const std::size_t size = in->size;
  if (size < sizeof(std::size_t) || size > sizeof(T)) {
    return {Code::kInvalid, std::string(what) + ".size is " + std::to_string(size) + "; this library knows up to " +
                                std::to_string(sizeof(T)) + " bytes. Fill the struct with its _default function first"};
  }
  std::memcpy(static_cast<void*>(&out), in, size);
  return Status::ok();
}

template <class E>
Status read_enum(std::uint32_t value, std::uint32_t last, const char* what, E& out) {
  if (value > last)
    return {Code::kInvalid, std::string(what) + " is " + std::to_string(value) + "; it must be 0 to " + std::to_string(last)};
  out = static_cast<E>(value);
  return Status::ok();
}

void fill(const drift::recal::RecalConfig& c, drift_options* out) {
  *out = {};
  out->size = sizeof(drift_options);
  out->capacity = c.bank.capacity;
  out->support = c.bank.support;
  out->neighbors = c.neighbors;
  out->key_type = static_cast<std::uint32_t>(c.bank.key_type);
  out->int8_scan = c.bank.int8_scan ? 1 : 0;
  out->standardise = c.bank.standardise ? 1 : 0;
  out->rate = static_cast<std::uint32_t>(c.bank.rate);
  out->gain = static_cast<std::uint32_t>(c.gain);
  out->weights = static_cast<std::uint32_t>(c.weights);
  out->support_rule = static_cast<std::uint32_t>(c.support);
  out->renormalise = c.renormalise ? 1 : 0;
  out->centre = c.centre ? 1 : 0;
  out->sigma = c.sigma;
  out->tau = c.bank.tau;
  out->eta = c.bank.eta;
  out->lambda = c.lambda;
  out->clip = c.clip;
}

Status read_options(const drift_options* in, drift::recal::RecalConfig& c) {
  drift_options o;
  drift_options_default(&o);
  DRIFT_TRY(read_sized(in, "options", o));
  c.bank.key_dim = o.hidden_width;
  c.bank.vocab = o.vocab;
  c.bank.capacity = o.capacity;
  c.bank.support = o.support;
  c.neighbors = o.neighbors;
  DRIFT_TRY(read_enum(o.key_type, 1, "options.key_type", c.bank.key_type));
  DRIFT_TRY(read_enum(o.int8_scan, 1, "options.int8_scan", c.bank.int8_scan));
  DRIFT_TRY(read_enum(o.standardise, 1, "options.standardise", c.bank.standardise));
  DRIFT_TRY(read_enum(o.rate, 2, "options.rate", c.bank.rate));
  DRIFT_TRY(read_enum(o.gain, 1, "options.gain", c.gain));
  DRIFT_TRY(read_enum(o.weights, 2, "options.weights", c.weights));
  DRIFT_TRY(read_enum(o.support_rule, 3, "options.support_rule", c.support));
  DRIFT_TRY(read_enum(o.renormalise, 1, "options.renormalise", c.renormalise));
  DRIFT_TRY(read_enum(o.centre, 1, "options.centre", c.centre));
  c.sigma = o.sigma;
  c.bank.tau = o.tau;
  c.bank.eta = o.eta;
  c.lambda = o.lambda;
  c.clip = o.clip;
  return Status::ok();
}

Status read_judging(const drift_judging* in, drift::recal::Judging& out) {
  drift_judging j;
  drift_judging_default(&j);
  if (in != nullptr) DRIFT_TRY(read_sized(in, "judging", j));
  DRIFT_TRY(read_enum(j.rejection, 1, "judging.rejection", out.rejection));
  out.sampler = {j.temperature, j.top_k, j.top_p, j.min_p};
  return out.sampler.validate();
}

Status read_fingerprint(const drift_bank& bank, const char* target, const char* draft, drift::bank::Fingerprint& out) {
  for (const char* hash : {target, draft}) {
    if (hash == nullptr) return missing("a model hash");
    const std::size_t length = strnlen(hash, 129);
    if (length < 1 || length > 128) return {Code::kInvalid, "a model hash must have 1 to 128 characters"};
  }
  out = {target, draft, bank.recal->config().bank.vocab, bank.recal->config().bank.key_dim};
  return Status::ok();
}

}  // namespace

extern "C" {

const char* drift_version(void) { return drift::version(); }
const char* drift_last_error(void) { return last_error.c_str(); }

void drift_options_default(drift_options* options) {
  if (options != nullptr) fill(drift::recal::RecalConfig::standard(), options);
}

void drift_options_seed(drift_options* options) {
  if (options != nullptr) fill(drift::recal::RecalConfig::seed(), options);
}

void drift_judging_default(drift_judging* judging) {
  if (judging == nullptr) return;
  *judging = {};
  judging->size = sizeof(drift_judging);
  judging->top_p = 1.0f;
}

drift_status drift_create(const drift_options* options, drift_bank** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return missing("out");
    drift::recal::RecalConfig config;
    DRIFT_TRY(read_options(options, config));
    auto bank = std::make_unique<drift_bank>();
    DRIFT_ASSIGN(bank->recal, drift::recal::Recalibrator::create(config));
    *out = bank.release();
    return Status::ok();
  });
}

void drift_destroy(drift_bank* bank) { delete bank; }

drift_status drift_lookup(drift_bank* bank, const float* hidden, size_t hidden_len, const drift_judging* judging, int32_t* tokens,
                          float* values, size_t room, size_t* count, uint32_t* position) {
  return guarded([&]() -> Status {
    if (bank == nullptr) return missing("bank");
    if (hidden == nullptr) return missing("hidden");
    if (count == nullptr || position == nullptr) return missing("count or position");
    if (room > 0 && (tokens == nullptr || values == nullptr)) return missing("tokens or values");
    drift::recal::Judging how;
    DRIFT_TRY(read_judging(judging, how));
    if (bank->used == DRIFT_MAX_POSITIONS) {
      return {Code::kLimit, "more than " + std::to_string(DRIFT_MAX_POSITIONS) +
                                " positions since the last commit; call drift_commit once per step"};
    }
    if (bank->used == bank->positions.size()) bank->positions.emplace_back();
    drift_bank::Position& p = bank->positions[bank->used];
    DRIFT_TRY(bank->recal->lookup({hidden, hidden_len}, p.lookup));
    bank->recal->bias(p.lookup, how, p.bias);
    p.observed = false;
    const std::size_t n = p.bias.gain == 0.0f ? 0 : p.bias.bias.size();
    if (n > room) return {Code::kLimit, "the bias has " + std::to_string(n) + " tokens; room is " + std::to_string(room)};
    for (std::size_t i = 0; i < n; ++i) {
      tokens[i] = p.bias.bias.tokens[i];
      values[i] = p.bias.gain * p.bias.bias.values[i];
    }
    *count = n;
    *position = static_cast<std::uint32_t>(bank->used++);
    return Status::ok();
  });
}

drift_status drift_observe(drift_bank* bank, uint32_t position, const float* draft_logits, const float* target_logits,
                           size_t vocab, const drift_judging* judging) {
  return guarded([&]() -> Status {
    if (bank == nullptr) return missing("bank");
    if (draft_logits == nullptr || target_logits == nullptr) return missing("a logits row");
    if (position >= bank->used)
      return {Code::kInvalid, "position " + std::to_string(position) + " was not looked up since the last commit"};
    drift_bank::Position& p = bank->positions[position];
    if (p.observed) return {Code::kInvalid, "position " + std::to_string(position) + " was observed already"};
    drift::recal::Judging how;
    DRIFT_TRY(read_judging(judging, how));
    DRIFT_TRY(bank->recal->observe(p.lookup, p.bias, {draft_logits, vocab}, {target_logits, vocab}, how));
    p.observed = true;
    return Status::ok();
  });
}

drift_status drift_commit(drift_bank* bank) {
  return guarded([&]() -> Status {
    if (bank == nullptr) return missing("bank");
    bank->recal->commit();
    bank->used = 0;
    return Status::ok();
  });
}

drift_status drift_discard(drift_bank* bank) {
  return guarded([&]() -> Status {
    if (bank == nullptr) return missing("bank");
    bank->recal->discard();
    bank->used = 0;
    return Status::ok();
  });
}

drift_status drift_save(const drift_bank* bank, const char* path, const char* target_hash, const char* draft_hash) {
  return guarded([&]() -> Status {
    if (bank == nullptr) return missing("bank");
    if (path == nullptr) return missing("path");
    drift::bank::Fingerprint fingerprint;
    DRIFT_TRY(read_fingerprint(*bank, target_hash, draft_hash, fingerprint));
    DRIFT_ASSIGN(auto file, drift::bank::BankFile::open(path, drift::bank::Access::kReadWrite));
    return file->save(bank->recal->save(fingerprint));
  });
}

drift_status drift_load(drift_bank* bank, const char* path, const char* target_hash, const char* draft_hash) {
  return guarded([&]() -> Status {
    if (bank == nullptr) return missing("bank");
    if (path == nullptr) return missing("path");
    drift::bank::Fingerprint fingerprint;
    DRIFT_TRY(read_fingerprint(*bank, target_hash, draft_hash, fingerprint));
    DRIFT_ASSIGN(auto file, drift::bank::BankFile::open(path, drift::bank::Access::kReadOnly));
    DRIFT_ASSIGN(const drift::bank::StoredBank stored, file->load(fingerprint));
    DRIFT_TRY(bank->recal->restore(stored));
    bank->used = 0;
    return Status::ok();
  });
}

drift_status drift_get_stats(const drift_bank* bank, drift_stats* out) {
  return guarded([&]() -> Status {
    if (bank == nullptr) return missing("bank");
    if (out == nullptr) return missing("out");
    drift_stats s;
    DRIFT_TRY(read_sized(out, "stats", s));
    const std::size_t size = out->size;
    const drift::bank::Bank& b = bank->recal->bank();
    s = {size,
         b.size(),
         b.config().capacity,
         b.bytes(),
         b.stats().commits,
         b.stats().allocated,
         b.stats().updated,
         b.stats().evicted};
    std::memcpy(out, &s, size);
    return Status::ok();
  });
}

}  // extern "C"
