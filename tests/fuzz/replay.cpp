// replay.cpp - a fuzzer's entry without libFuzzer: runs every seed, then seeded mutations of them. An ordinary test for compilers that
// have no fuzzer of their own.
//
//     replay FOLDER MUTATIONS     runs the files of FOLDER and that many mutations
//     replay FILE...              runs these, to look at a finding
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void run(const std::string& input) { LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()); }

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& seeds) : seeds_(seeds) {}

  std::string next() {
    std::string out = seeds_[below(seeds_.size())];
    for (std::size_t i = 1 + below(6); i > 0; --i) change(out);
    return out;
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }
  void change(std::string& text) {
    static const char* const kWords[] = {"null",
                                         "true",
                                         "-1",
                                         "1e308",
                                         "1e999",
                                         "0.5",
                                         "[]",
                                         "{}",
                                         "\"\"",
                                         "[[[[",
                                         "\\u0000",
                                         "\\ud800",
                                         "18446744073709551616",
                                         "\xff",
                                         "\xc3\xa9",
                                         "}",
                                         "]",
                                         ",",
                                         ":",
                                         "\""};
    if (text.empty()) text = "0";
    const std::size_t at = below(text.size());
    switch (below(7)) {
      case 0: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
      case 1: text[at] = static_cast<char>(below(256)); break;
      case 2: text.insert(at, kWords[below(std::size(kWords))]); break;
      case 3: text.erase(at, 1 + below(16)); break;
      case 4: text.insert(at, text.substr(below(text.size()), 1 + below(32))); break;
      case 5: {  // the rest of another seed
        const std::string& other = seeds_[below(seeds_.size())];
        if (!other.empty()) text = text.substr(0, at) + other.substr(below(other.size()));
        break;
      }
      default: {  // a word for a word
        const std::size_t from = text.find_first_of(" :,[{", at),
                          to = text.find_first_of(",]}", from == std::string::npos ? at : from);
        if (from != std::string::npos && to != std::string::npos && to > from)
          text.replace(from + 1, to - from - 1, kWords[below(std::size(kWords))]);
      }
    }
  }

  const std::vector<std::string>& seeds_;
  std::mt19937_64 random_{20'260'101};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && fs::is_directory(argv[1])) {
    std::vector<std::string> seeds;
    std::vector<fs::path> files;
    for (const auto& item : fs::directory_iterator(argv[1])) files.push_back(item.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& path : files) seeds.push_back(read(path));
    if (seeds.empty()) {
      std::fprintf(stderr, "replay: there are no seeds in %s\n", argv[1]);
      return 2;
    }
    for (const std::string& seed : seeds) run(seed);
    const long most = std::atol(argv[2]);
    Mutator mutator(seeds);
    for (long i = 0; i < most; ++i) {
      const std::string input = mutator.next();
      // What ends the program is then in this file.
      if (const char* keep = std::getenv("DRIFT_FUZZ_LAST")) std::ofstream(keep, std::ios::binary | std::ios::trunc) << input;
      run(input);
    }
    std::printf("%zu seeds and %ld mutations\n", seeds.size(), most);
    return 0;
  }
  for (int i = 1; i < argc; ++i) run(read(argv[i]));
  return argc > 1 ? 0 : 2;
}
