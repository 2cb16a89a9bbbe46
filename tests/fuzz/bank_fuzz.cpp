// bank_fuzz.cpp - any bytes as a bank file: refused in words, or a bank that can be used and saved again.
//
// A file whose bytes were changed fails the content hash nearly always, so only an input that begins with 'F' is a file. Any other
// edits a sound bank before it is written with the hash that belongs to it: what stands behind the hash is tried too. Such an
// input is a list of edits of 6 bytes: field, place (2), how many bytes (1), byte, and one that chooses among the ways of writing it.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "drift/bank/store.hpp"
#include "drift/bank/store_db.hpp"
#include "drift/bank/store_sample.hpp"
#include "drift/recal/bank_session.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace drift;
namespace fs = std::filesystem;

// A folder of its own, in memory where that is to be had, and gone with the program.
struct Folder {
  Folder() {
    std::string pattern = (fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) / "drift-fuzz-XXXXXX";
    FUZZ_EXPECT(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() {
    std::error_code error;
    fs::remove_all(path, error);
  }
  fs::path path;
};

// Larger ones are sound, and take too long here.
bool is_small(const bank::BankConfig& config) {
  return std::uint64_t{config.capacity} * (config.key_dim + std::uint64_t{2} * config.support) < (1u << 20);
}

void expect_usable(const fs::path& file, const fs::path& copy) {
  auto opened = bank::BankFile::open(file, bank::Access::kReadOnly);
  if (!opened.is_ok()) {
    FUZZ_EXPECT(!opened.status().message().empty());
    return;
  }
  auto loaded = (*opened)->load();
  if (!loaded.is_ok()) {
    FUZZ_EXPECT(!loaded.status().message().empty());
    return;
  }
  std::error_code error;
  fs::remove(copy, error);
  auto again = bank::BankFile::open(copy, bank::Access::kReadWrite);
  FUZZ_EXPECT(again.is_ok());
  FUZZ_EXPECT((*again)->save(*loaded).is_ok());
  auto back = (*again)->load();
  FUZZ_EXPECT(back.is_ok() && bank::sample::same(*back, *loaded));
  if (!is_small(loaded->image.config)) return;
  recal::RecalConfig config;
  config.levels = recal::parse_levels("all").value();
  config.ngram_capacity = 64;
  config.bank.key_dim = loaded->image.config.key_dim;
  config.bank.vocab = loaded->image.config.vocab;
  recal::BankOwner owner;
  owner.fingerprint = loaded->fingerprint;
  const auto session = recal::BankSession::open(file.string(), /*read_only=*/true, config, owner);
  if (!session.is_ok()) FUZZ_EXPECT(!session.status().message().empty());
}

// A bank with the state of every level in its extras.
const bank::StoredBank& sound_bank() {
  static const bank::StoredBank kBank = [] {
    bank::StoredBank out = bank::sample::bank(7);
    recal::RecalConfig config;
    config.bank = out.image.config;
    config.levels = recal::parse_levels("all").value();
    config.ngram_capacity = 16;
    config.ngram_support = 2;
    auto recal = recal::Recalibrator::create(config);
    FUZZ_EXPECT(recal.is_ok());
    for (auto& [name, content] : (*recal)->save(out.fingerprint).extras) out.extras[name] = content;
    return out;
  }();
  return kBank;
}

struct Edit {
  std::uint8_t field = 0, count = 0, byte = 0, way = 0;
  std::uint16_t place = 0;
};

void change(void* data, std::size_t size, const Edit& edit) {
  if (size == 0) return;
  auto* bytes = static_cast<std::uint8_t*>(data);
  const std::size_t at = edit.place % size;
  for (std::size_t i = at; i < std::min(size, at + 1 + edit.count % 8); ++i)
    bytes[i] = static_cast<std::uint8_t>(edit.way % 2 == 0 ? edit.byte : bytes[i] ^ (1u << (edit.byte % 8)));
}

template <class T>
void change(std::vector<T>& list, const Edit& edit) {
  if (edit.way == 255) {
    list.resize(edit.place % 256);
  } else {
    change(list.data(), list.size() * sizeof(T), edit);
  }
}

void apply(bank::StoredBank& bank, const Edit& edit) {
  bank::BankImage& image = bank.image;
  const auto number = static_cast<std::uint32_t>(edit.place | (edit.way == 255 ? edit.byte << 16 : 0));
  switch (edit.field % 20) {
    case 0: change(image.lengths, edit); break;
    case 1: change(image.counts, edit); break;
    case 2: change(image.last_used, edit); break;
    case 3: change(image.errors, edit); break;
    case 4: change(image.tokens, edit); break;
    case 5: change(image.values, edit); break;
    case 6: change(image.keys, edit); break;
    case 7: image.size = number; break;
    case 8: change(&image.use_counter, sizeof(image.use_counter), edit); break;
    case 9: image.config.capacity = number; break;
    case 10: image.config.key_dim = number; break;
    case 11: image.config.support = number; break;
    case 12: image.config.vocab = number; break;
    case 13: image.config.key_type = edit.byte % 2 == 0 ? bank::KeyType::kF32 : bank::KeyType::kF16; break;
    case 14: change(&image.config.tau, sizeof(float), edit); break;
    case 15: bank.fingerprint.hidden_width = number; break;
    case 16: change(bank.target_name.data(), bank.target_name.size(), edit); break;
    case 17: change(bank.fingerprint.target_hash.data(), bank.fingerprint.target_hash.size(), edit); break;
    default: {
      auto it = bank.extras.begin();
      std::advance(it, edit.count % bank.extras.size());
      change(it->second, edit);
    }
  }
}

// The images that db::write may be given hold arrays of the sizes they say: it is no reader.
bool can_be_written(const bank::BankImage& image) {
  const std::size_t n = image.size, support = image.config.support;
  return n <= 4'096 && support <= 4'096 && image.lengths.size() == n && image.counts.size() == n && image.last_used.size() == n &&
         image.errors.size() == n && image.tokens.size() == n * support && image.values.size() == n * support &&
         image.keys.size() == n * bank::format::record_bytes(image.config);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder kFolder;
  const fs::path file = kFolder.path / "x.bank", copy = kFolder.path / "copy.bank";
  if (size > 0 && data[0] == 'F') {
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(size) - 1);
  } else {
    bank::StoredBank bank = sound_bank();
    for (std::size_t at = 0; at + 6 <= size && at < 600; at += 6) {
      Edit edit{data[at], data[at + 3], data[at + 4], data[at + 5], 0};
      edit.place = static_cast<std::uint16_t>(data[at + 1] | data[at + 2] << 8);
      apply(bank, edit);
    }
    if (!can_be_written(bank.image)) return 0;
    std::ofstream(file, std::ios::binary | std::ios::trunc).close();
    if (!bank::db::write(file, &bank).is_ok()) {  // no number SQLite would keep: what is saved is checked before
      FUZZ_EXPECT(!bank::format::check_bank(bank).is_ok());
      return 0;
    }
  }
  expect_usable(file, copy);
  return 0;
}
