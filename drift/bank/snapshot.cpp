#include "drift/bank/snapshot.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "drift/bank/bank_impl.hpp"
#include "drift/base/check.hpp"
#include "drift/base/huge_pages.hpp"

namespace drift::bank {
namespace {

// Grows every array to what a full bank needs and touches all of it, then empties it: the memory stays.
template <class T>
void touch_whole(std::vector<T>& array, std::size_t size) {
  array.reserve(size);
  advise_huge_pages(array.data(), size * sizeof(T));
  array.resize(size);
  array.clear();
}

}  // namespace

Snapshot::Impl::Impl(const Bank::Impl& source, BankImage room) : bank(&source), image(std::move(room)) {
  image.config = source.config;
  image.size = source.size;
  image.use_counter = source.use_counter;
  const std::size_t n = source.size;
  const std::size_t support = source.config.support;
  const std::size_t key_bytes = source.keys->record_bytes();
  image.lengths.assign(source.lengths.data(), source.lengths.data() + n);
  image.counts.assign(source.counts.data(), source.counts.data() + n);
  image.last_used.assign(source.last_used.data(), source.last_used.data() + n);
  image.errors.assign(source.errors.data(), source.errors.data() + n);
  // Reserved, not resized: without a room, pages are touched when advance() fills them.
  image.tokens.clear();
  image.values.clear();
  image.keys.clear();
  image.tokens.reserve(n * support);
  image.values.reserve(n * support);
  image.keys.reserve(n * key_bytes);
  advise_huge_pages(image.tokens.data(), n * support * sizeof(Token));
  advise_huge_pages(image.values.data(), n * support * sizeof(float));
  advise_huge_pages(image.keys.data(), n * key_bytes);
  record_bytes = support * (sizeof(Token) + sizeof(float)) + key_bytes;
  saved_slot.assign(n, 0);
  key_scratch.resize(key_bytes);
}

Snapshot::Impl::~Impl() { detach(); }

void Snapshot::Impl::attach(Bank::Impl& owner) {
  // Room for every entry, so that no commit has to wait for the rest to be copied; pages are touched only when used.
  saved = std::make_unique_for_overwrite<std::byte[]>(image.size * record_bytes);
  attached = &owner;
  owner.snapshot = this;
}

void Snapshot::Impl::detach() {
  if (attached != nullptr) attached->snapshot = nullptr;
  attached = nullptr;
  saved.reset();
}

void Snapshot::Impl::read_entry(EntryId id, std::byte* out) const {
  const std::size_t support = image.config.support;
  std::memcpy(out, bank->tokens_of(id), support * sizeof(Token));
  std::memcpy(out + support * sizeof(Token), bank->values_of(id), support * sizeof(float));
  bank->keys->read_record(id, {out + support * (sizeof(Token) + sizeof(float)), key_scratch.size()});
}

void Snapshot::Impl::append(EntryId id) {
  const std::size_t support = image.config.support;
  if (saved_slot[id] == 0) {
    image.tokens.insert(image.tokens.end(), bank->tokens_of(id), bank->tokens_of(id) + support);
    image.values.insert(image.values.end(), bank->values_of(id), bank->values_of(id) + support);
    bank->keys->read_record(id, key_scratch);
    image.keys.insert(image.keys.end(), key_scratch.begin(), key_scratch.end());
    return;
  }
  const std::byte* const record = saved.get() + (saved_slot[id] - 1) * record_bytes;
  const std::size_t at = image.tokens.size();
  image.tokens.resize(at + support);
  image.values.resize(at + support);
  std::memcpy(image.tokens.data() + at, record, support * sizeof(Token));
  std::memcpy(image.values.data() + at, record + support * sizeof(Token), support * sizeof(float));
  const std::byte* const key = record + support * (sizeof(Token) + sizeof(float));
  image.keys.insert(image.keys.end(), key, key + key_scratch.size());
}

void Snapshot::Impl::advance(std::size_t budget_bytes) {
  const std::size_t entries = std::max<std::size_t>(1, budget_bytes / record_bytes);
  const std::uint32_t end =
      static_cast<std::uint32_t>(std::min<std::size_t>(image.size, cursor + std::min<std::size_t>(entries, image.size)));
  for (; cursor < end; ++cursor) append(cursor);
  if (done()) {
    detach();
    bank = nullptr;
  }
}

void Snapshot::Impl::before_change(EntryId id) {
  if (id < cursor || id >= image.size || saved_slot[id] != 0) return;
  read_entry(id, saved.get() + saved_count * record_bytes);
  saved_slot[id] = ++saved_count;
}

Snapshot::Snapshot(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Snapshot::~Snapshot() = default;

Result<BankImage> Snapshot::room(const BankConfig& config) {
  DRIFT_TRY(config.validate());
  const std::size_t n = config.capacity;
  const std::size_t key_bytes = n * key_record_bytes(config);
  try {
    BankImage room;
    touch_whole(room.lengths, n);
    touch_whole(room.counts, n);
    touch_whole(room.last_used, n);
    touch_whole(room.errors, n);
    touch_whole(room.tokens, n * config.support);
    touch_whole(room.values, n * config.support);
    touch_whole(room.keys, key_bytes);
    return room;
  } catch (const std::bad_alloc&) {
    return {Code::kLimit, "snapshot: no memory for a copy of a bank of " + std::to_string(config.bytes()) + " bytes"};
  }
}

Result<std::unique_ptr<Snapshot>> Snapshot::start(Bank& bank, BankImage room) {
  if (bank.impl_->snapshot != nullptr)
    return {Code::kBusy, "snapshot: one is already running on this bank; wait until it is done"};
  try {
    auto impl = std::make_unique<Impl>(*bank.impl_, std::move(room));
    impl->attach(*bank.impl_);
    if (impl->done()) impl->advance(0);  // an empty bank
    return std::unique_ptr<Snapshot>(new Snapshot(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return {Code::kLimit, "snapshot: no memory for a copy of a bank of " + std::to_string(bank.bytes()) + " bytes"};
  }
}

void Snapshot::advance(std::size_t budget_bytes) {
  if (!done()) impl_->advance(budget_bytes);
}

bool Snapshot::done() const { return impl_->done(); }

BankImage Snapshot::take() {
  DRIFT_CHECK(done(), "a snapshot is taken once it is done");
  return std::move(impl_->image);
}

BankImage Snapshot::copy(const Bank& bank) {
  Impl impl(*bank.impl_, {});
  impl.advance(~std::size_t{0});
  return std::move(impl.image);
}

}  // namespace drift::bank
