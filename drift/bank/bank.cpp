#include "drift/bank/bank.hpp"

#include <algorithm>
#include <cmath>
#include <new>

#include "drift/bank/bank_impl.hpp"
#include "drift/bank/top_neighbors.hpp"
#include "drift/base/check.hpp"
#include "drift/base/mutant.hpp"

namespace drift::bank {
namespace {

constexpr float kErrorDecay = 0.75f;  // RateRule::kError, see config.hpp

// Visits the union of two ascending token lists: visit(token, value in a or 0, value in b or 0).
template <class Visit>
void merge_tokens(std::span<const Token> a_tokens, std::span<const float> a, std::span<const Token> b_tokens,
                  std::span<const float> b, Visit visit) {
  std::size_t i = 0, j = 0;
  while (i < a_tokens.size() || j < b_tokens.size()) {
    const bool take_a = j == b_tokens.size() || (i < a_tokens.size() && a_tokens[i] <= b_tokens[j]);
    const bool take_b = i == a_tokens.size() || (j < b_tokens.size() && b_tokens[j] <= a_tokens[i]);
    visit(take_a ? a_tokens[i] : b_tokens[j], take_a ? a[i] : 0.0f, take_b ? b[j] : 0.0f);
    i += take_a;
    j += take_b;
  }
}

}  // namespace

Bank::Impl::Impl(const BankConfig& bank_config)
    : config(bank_config),
      keys(make_key_index(bank_config)),
      lengths(config.capacity),
      counts(config.capacity),
      last_used(config.capacity),
      errors(config.capacity),
      tokens(std::size_t{config.capacity} * config.support),
      values(std::size_t{config.capacity} * config.support),
      older(config.capacity),
      newer(config.capacity),
      changed(config.capacity),
      is_changed(config.capacity),
      merged(merge_slots(config)) {}

void Bank::Impl::link_newest(EntryId id) {
  older[id] = newest;
  newer[id] = kNoEntry;
  if (newest != kNoEntry)
    newer[newest] = id;
  else
    oldest = id;
  newest = id;
}

void Bank::Impl::unlink(EntryId id) {
  if (older[id] != kNoEntry)
    newer[older[id]] = newer[id];
  else
    oldest = newer[id];
  if (newer[id] != kNoEntry)
    older[newer[id]] = older[id];
  else
    newest = older[id];
}

void Bank::Impl::touch(EntryId id) {
  unlink(id);
  link_newest(id);
  last_used[id] = ++use_counter;
}

void Bank::Impl::relink() {
  // `changed` is free between commits and has room for every entry.
  const std::span<EntryId> order = changed.span().first(size);
  for (EntryId id = 0; id < size; ++id) order[id] = id;
  std::sort(order.begin(), order.end(), [&](EntryId a, EntryId b) { return last_used[a] < last_used[b]; });
  oldest = newest = kNoEntry;
  for (const EntryId id : order) link_newest(id);
}

void Bank::Impl::before_change(EntryId id) {
  if (snapshot != nullptr) snapshot->before_change(id);
  if (is_changed[id]) return;
  is_changed[id] = 1;
  changed[changed_count++] = id;
}

bool Bank::Impl::find_nearest(const Lesson& lesson, Neighbor& best) const {
  // The lookup's first neighbour that has not changed since is the best of all unchanged entries, because the lookup ranked
  // all of them. Changed entries (also those made or replaced since) are scored afresh.
  const Neighbor* unchanged = nullptr;
  for (const Neighbor& n : lesson.neighbors) {
    DRIFT_CHECK(n.entry < size, "a neighbour is an entry of this bank");
    if (is_changed[n.entry]) continue;
    unchanged = &n;
    break;
  }
  const KeyView key{lesson.key, lesson.hash};
  if (unchanged == nullptr) return keys->nearest(key, size, {&best, 1}) == 1;
  best = *unchanged;
  for (const EntryId id : changed.span().first(changed_count)) {
    const Neighbor fresh{id, keys->similarity(key, id)};
    if (better(fresh, best)) best = fresh;
  }
  return true;
}

float Bank::Impl::rate_of(EntryId id, const Lesson& lesson) {
  if (config.rate == RateRule::kFixed) return config.eta;
  if (config.rate == RateRule::kCount) return std::max(config.eta, 1.0f / (static_cast<float>(counts[id]) + 1.0f));
  double apart = 0, total = 0;
  merge_tokens({tokens_of(id), lengths[id]}, {values_of(id), lengths[id]}, lesson.tokens, lesson.values,
               [&](Token, float b, float r) {
                 apart += std::fabs(double{r} - double{b});
                 total += std::fabs(double{r}) + std::fabs(double{b});
               });
  const float miss = total > 0 ? static_cast<float>(apart / total) : 0.0f;
  errors[id] = std::clamp(kErrorDecay * errors[id] + (1.0f - kErrorDecay) * miss, 0.0f, 1.0f);
  return std::clamp(errors[id], config.eta, 1.0f);
}

void Bank::Impl::keep_largest(EntryId id, std::size_t count) {
  TokenValue* const first = merged.data();
  const std::size_t kept = std::min<std::size_t>(count, config.support);
  if (kept < count) {
    std::nth_element(first, first + kept, first + count, [](const TokenValue& a, const TokenValue& b) {
      const float size_a = std::fabs(a.value), size_b = std::fabs(b.value);
      return size_a > size_b || (size_a == size_b && a.token < b.token);
    });
    std::sort(first, first + kept, [](const TokenValue& a, const TokenValue& b) { return a.token < b.token; });
  }
  Token* const entry_tokens = tokens_of(id);
  float* const entry_values = values_of(id);
  for (std::size_t i = 0; i < kept; ++i) {
    entry_tokens[i] = merged[i].token;
    entry_values[i] = merged[i].value;
  }
  std::fill(entry_tokens + kept, entry_tokens + config.support, kNoToken);
  std::fill(entry_values + kept, entry_values + config.support, 0.0f);
  lengths[id] = static_cast<std::uint32_t>(kept);
}

void Bank::Impl::update(EntryId id, const Lesson& lesson) {
  before_change(id);
  const float rate = rate_of(id, lesson);
  keys->move(id, KeyView{lesson.key, lesson.hash}, rate);
  std::size_t count = 0;
  merge_tokens({tokens_of(id), lengths[id]}, {values_of(id), lengths[id]}, lesson.tokens, lesson.values,
               [&](Token token, float b, float r) { merged[count++] = {token, (1.0f - rate) * b + rate * r}; });
  keep_largest(id, count);
  if (counts[id] != ~std::uint32_t{0}) ++counts[id];
  touch(id);
  ++stats.updated;
}

void Bank::Impl::allocate(const Lesson& lesson) {
  EntryId id = size;
  if (size < config.capacity) {
    ++size;
  } else {
    id = oldest;
    unlink(id);
    ++stats.evicted;
  }
  before_change(id);
  keys->assign(id, KeyView{lesson.key, lesson.hash});
  for (std::size_t i = 0; i < lesson.tokens.size(); ++i) merged[i] = {lesson.tokens[i], lesson.values[i]};
  keep_largest(id, lesson.tokens.size());
  counts[id] = 1;
  errors[id] = 1.0f;
  link_newest(id);
  last_used[id] = ++use_counter;
  ++stats.allocated;
}

void Bank::Impl::learn(const Lesson& lesson) {
  DRIFT_CHECK(config.key_type == KeyType::kHash || lesson.key.size() == config.key_dim, "a key has key_dim elements");
  DRIFT_CHECK(lesson.tokens.size() == lesson.values.size(), "a residual has as many values as tokens");
  DRIFT_CHECK(lesson.tokens.size() <= kMaxLessonTokens, "a lesson brings at most kMaxLessonTokens tokens");
  for (std::size_t i = 0; i < lesson.tokens.size(); ++i) {
    const bool ascending = lesson.tokens[i] > (i == 0 ? -1 : lesson.tokens[i - 1]);
    DRIFT_CHECK(ascending && static_cast<std::uint32_t>(lesson.tokens[i]) < config.vocab, "tokens are ascending and below vocab");
    DRIFT_CHECK(std::isfinite(lesson.values[i]), "a residual is finite");
  }
  Neighbor best;
  if (find_nearest(lesson, best) && best.score >= config.tau)
    update(best.entry, lesson);
  else
    allocate(lesson);
}

void Bank::Impl::clear() {
  if (snapshot != nullptr) snapshot->advance(~std::size_t{0});
  size = 0;
  use_counter = 0;
  oldest = newest = kNoEntry;
  stats = {};
}

std::uint64_t Bank::Impl::bytes() const {
  return keys->bytes() + lengths.bytes() + counts.bytes() + last_used.bytes() + errors.bytes() + tokens.bytes() + values.bytes() +
         older.bytes() + newer.bytes() + changed.bytes() + is_changed.bytes() + merged.bytes();
}

Bank::Bank(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Bank::~Bank() {
  if (impl_->snapshot != nullptr) impl_->snapshot->advance(~std::size_t{0});  // it outlives the bank with the content it promised
}

Result<std::unique_ptr<Bank>> Bank::create(const BankConfig& config) {
  DRIFT_TRY(config.validate());
  try {
    return std::unique_ptr<Bank>(new Bank(std::make_unique<Impl>(config)));
  } catch (const std::bad_alloc&) {
    return {Code::kIo, "bank: no memory for " + std::to_string(config.bytes()) + " bytes; lower the capacity, or use f16 keys"};
  }
}

const BankConfig& Bank::config() const { return impl_->config; }
std::uint32_t Bank::size() const { return impl_->size; }
std::uint64_t Bank::bytes() const { return impl_->bytes(); }
const BankStats& Bank::stats() const { return impl_->stats; }
const KeyIndex& Bank::keys() const { return *impl_->keys; }

EntryView Bank::entry(EntryId id) const {
  DRIFT_CHECK(id < impl_->size, "an entry of this bank");
  const std::size_t length = impl_->lengths[id];
  return {{impl_->tokens_of(id), length}, {impl_->values_of(id), length}, impl_->counts[id], impl_->last_used[id]};
}

std::size_t Bank::nearest(const KeyView& key, std::span<Neighbor> out) const {
  const std::size_t found = impl_->keys->nearest(key, impl_->size, out);
  if constexpr (is_mutant(Mutant::kTouchInLookup)) {
    for (const Neighbor& n : out.first(found)) impl_->touch(n.entry);
  }
  return found;
}

void Bank::commit(std::span<const EntryId> touched, std::span<const Lesson> lessons) {
  Impl& bank = *impl_;
  ++bank.stats.commits;
  for (const EntryId id : touched) {
    DRIFT_CHECK(id < bank.size, "a touched entry is in the bank");
    bank.touch(id);
  }
  for (const Lesson& lesson : lessons) bank.learn(lesson);
  for (const EntryId id : bank.changed.span().first(bank.changed_count)) bank.is_changed[id] = 0;
  bank.changed_count = 0;
}

void Bank::rekey(const std::function<void(std::span<float>)>& convert) {
  if (impl_->snapshot != nullptr) impl_->snapshot->advance(~std::size_t{0});
  for (EntryId id = 0; id < impl_->size; ++id) impl_->keys->transform(id, convert);
}

void Bank::clear() { impl_->clear(); }

}  // namespace drift::bank
