// bank_writer - saves numbered contents into a bank in a loop, to be killed; or checks what a killed one left.
//
//   bank_writer write FILE    goes on from the number in FILE; prints "begin N" before and "saved N" after each save
//   bank_writer check FILE    verifies FILE, compares its content with what the number in it stands for, prints the number
//                             ("empty" if nothing was saved, "missing" if there is no file); exit code 1 if anything is wrong
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "drift/bank/store_sample.hpp"

namespace {

using namespace drift;
using namespace drift::bank;

// Grows and shrinks with the number, from one page to a few hundred, over more than one chunk.
StoredBank content(std::uint64_t number) {
  sample::Shape shape{static_cast<std::uint32_t>(number * 37 % 1'500), 2'048, 16, 4, 1'000};
  return sample::bank(number, shape);
}

std::uint64_t number_of(const StoredBank& bank) {
  std::uint64_t number = 0;
  const auto it = bank.extras.find("number");
  if (it != bank.extras.end() && it->second.size() == sizeof number) std::memcpy(&number, it->second.data(), sizeof number);
  return number;
}

// One write() per line: a killed process must not lose what it said in a buffer.
void say(const std::string& line) {
  if (::write(STDOUT_FILENO, (line + "\n").c_str(), line.size() + 1) < 0) std::perror("bank_writer");
}

int fail(const Status& status) {
  std::fprintf(stderr, "bank_writer: %s: %s\n", code_name(status.code()), status.message().c_str());
  return 1;
}

int write_forever(const char* path) {
  auto file = BankFile::open(path, Access::kReadWrite);
  if (!file.is_ok()) return fail(file.status());
  std::uint64_t number = 0;
  if (!(*file)->empty()) {
    auto bank = (*file)->load();
    if (!bank.is_ok()) return fail(bank.status());
    number = number_of(*bank);
  }
  for (;;) {
    ++number;
    const StoredBank bank = content(number);
    say("begin " + std::to_string(number));
    const Status saved = (*file)->save(bank);
    if (!saved.is_ok()) return fail(saved);
    say("saved " + std::to_string(number));
  }
}

int check(const char* path) {
  const Status verified = verify_bank_file(path);
  if (verified.code() == Code::kNotFound) return say("missing"), 0;
  if (!verified.is_ok()) return fail(verified);
  auto file = BankFile::open(path, Access::kReadOnly);
  if (!file.is_ok()) return fail(file.status());
  if ((*file)->empty()) return say("empty"), 0;
  auto bank = (*file)->load();
  if (!bank.is_ok()) return fail(bank.status());
  if (!sample::same(*bank, content(number_of(*bank))))
    return fail({Code::kCorrupt, "the content is not what its number stands for"});
  say(std::to_string(number_of(*bank)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "write") == 0) return write_forever(argv[2]);
  if (argc == 3 && std::strcmp(argv[1], "check") == 0) return check(argv[2]);
  std::fprintf(stderr, "usage: bank_writer write|check FILE\n");
  return 2;
}
