// image.cpp - from plain memory to a bank: every bound is checked before anything is believed.
#include <algorithm>
#include <cmath>
#include <new>
#include <string>

#include "drift/bank/bank.hpp"
#include "drift/bank/bank_impl.hpp"

namespace drift::bank {
namespace {

Status corrupt(const std::string& what) { return {Code::kCorrupt, "bank image: " + what}; }

Status check_sizes(const BankImage& image, std::size_t record_bytes) {
  const std::size_t n = image.size;
  if (n > image.config.capacity)
    return corrupt("size " + std::to_string(n) + " exceeds the capacity " + std::to_string(image.config.capacity));
  const auto expect = [](const char* name, std::size_t have, std::size_t want) {
    return have == want
               ? Status::ok()
               : corrupt(std::string(name) + " has " + std::to_string(have) + " elements, " + std::to_string(want) + " expected");
  };
  DRIFT_TRY(expect("lengths", image.lengths.size(), n));
  DRIFT_TRY(expect("counts", image.counts.size(), n));
  DRIFT_TRY(expect("last_used", image.last_used.size(), n));
  DRIFT_TRY(expect("errors", image.errors.size(), n));
  DRIFT_TRY(expect("tokens", image.tokens.size(), n * image.config.support));
  DRIFT_TRY(expect("values", image.values.size(), n * image.config.support));
  return expect("keys", image.keys.size(), n * record_bytes);
}

Status check_residual(const BankImage& image, std::size_t id) {
  const std::size_t support = image.config.support;
  const std::string entry = "entry " + std::to_string(id) + ": ";
  const std::size_t length = image.lengths[id];
  if (length > support)
    return corrupt(entry + "holds " + std::to_string(length) + " tokens, the support is " + std::to_string(support));
  Token last = -1;
  for (std::size_t i = 0; i < support; ++i) {
    const Token token = image.tokens[id * support + i];
    const float value = image.values[id * support + i];
    if (i >= length) {
      if (token != kNoToken || value != 0.0f) return corrupt(entry + "slot " + std::to_string(i) + " should be unused");
      continue;
    }
    if (token < 0 || static_cast<std::uint32_t>(token) >= image.config.vocab)
      return corrupt(entry + "token " + std::to_string(token) + " is outside 0 .. " + std::to_string(image.config.vocab - 1));
    if (token <= last) return corrupt(entry + "tokens are not ascending");
    if (!std::isfinite(value)) return corrupt(entry + "a value is not a finite number");
    last = token;
  }
  return Status::ok();
}

}  // namespace

Status check_image(const BankImage& image, const KeyIndex& keys) {
  DRIFT_TRY(check_sizes(image, keys.record_bytes()));
  for (std::size_t id = 0; id < image.size; ++id) {
    DRIFT_TRY(check_residual(image, id));
    const std::string entry = "entry " + std::to_string(id) + ": ";
    if (image.counts[id] == 0) return corrupt(entry + "count is 0");
    if (image.last_used[id] == 0 || image.last_used[id] > image.use_counter)
      return corrupt(entry + "last use " + std::to_string(image.last_used[id]) + " is outside 1 .. " +
                     std::to_string(image.use_counter));
    if (!(image.errors[id] >= 0.0f && image.errors[id] <= 1.0f)) return corrupt(entry + "the running error is outside [0, 1]");
    const Status key = keys.check_record(std::span(image.keys).subspan(id * keys.record_bytes(), keys.record_bytes()));
    if (!key.is_ok()) return corrupt(entry + key.message());
  }
  std::vector<std::uint64_t> used = image.last_used;
  std::sort(used.begin(), used.end());
  if (std::adjacent_find(used.begin(), used.end()) != used.end()) return corrupt("two entries have the same last use");
  return Status::ok();
}

void Bank::Impl::load(const BankImage& image) {
  clear();
  size = image.size;
  use_counter = image.use_counter;
  std::copy(image.lengths.begin(), image.lengths.end(), lengths.data());
  std::copy(image.counts.begin(), image.counts.end(), counts.data());
  std::copy(image.last_used.begin(), image.last_used.end(), last_used.data());
  std::copy(image.errors.begin(), image.errors.end(), errors.data());
  std::copy(image.tokens.begin(), image.tokens.end(), tokens.data());
  std::copy(image.values.begin(), image.values.end(), values.data());
  const std::size_t bytes_each = keys->record_bytes();
  for (EntryId id = 0; id < size; ++id) {
    const Status written = keys->write_record(id, std::span(image.keys).subspan(id * bytes_each, bytes_each));
    DRIFT_CHECK(written.is_ok(), "the image was checked");
  }
  relink();
}

Result<std::unique_ptr<Bank>> Bank::from_image(const BankImage& image) {
  const Status valid = image.config.validate();
  if (!valid.is_ok()) return {valid.code() == Code::kLimit ? Code::kLimit : Code::kCorrupt, "bank image: " + valid.message()};
  DRIFT_ASSIGN(std::unique_ptr<Bank> bank, Bank::create(image.config));
  DRIFT_TRY(bank->restore(image));
  return bank;
}

Status Bank::restore(const BankImage& image) {
  if (!(image.config == impl_->config))
    return {Code::kForeign, "bank image: its configuration (N " + std::to_string(image.config.capacity) + ", d " +
                                std::to_string(image.config.key_dim) + ", m " + std::to_string(image.config.support) +
                                ", ...) is not this bank's (N " + std::to_string(impl_->config.capacity) + ", d " +
                                std::to_string(impl_->config.key_dim) + ", m " + std::to_string(impl_->config.support) +
                                ", ...); make a bank from the image instead"};
  DRIFT_TRY(check_image(image, *impl_->keys));
  impl_->load(image);
  return Status::ok();
}

}  // namespace drift::bank
