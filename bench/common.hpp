// common.hpp - what the benchmarks share: a clock, robust statistics, options, random keys, JSON output.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace drift::bench {

inline double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The value at a share of the sorted samples. Requires: non-empty.
inline double quantile(std::vector<double> samples, double share) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
}

struct Summary {
  double median = 0, low = 0, high = 0;  // low, high: quartiles
};

inline Summary summarise(const std::vector<double>& samples) {
  return {quantile(samples, 0.5), quantile(samples, 0.25), quantile(samples, 0.75)};
}

// Options of all benchmarks: --smoke, --json FILE, --n LIST, --d LIST (comma-separated), --rounds R.
struct Options {
  bool smoke = false;
  bool fresh = false;  // bench_snapshot only
  std::string json;
  std::vector<std::uint32_t> n, d;
  int rounds = 9;
};

inline std::vector<std::uint32_t> parse_list(const std::string& text) {
  std::vector<std::uint32_t> result;
  std::stringstream in(text);
  for (std::string item; std::getline(in, item, ',');)
    result.push_back(static_cast<std::uint32_t>(std::strtoul(item.c_str(), nullptr, 10)));
  return result;
}

inline Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const bool has_value = i + 1 < argc;
    if (name == "--smoke")
      options.smoke = true;
    else if (name == "--fresh")
      options.fresh = true;
    else if (name == "--json" && has_value)
      options.json = argv[++i];
    else if (name == "--n" && has_value)
      options.n = parse_list(argv[++i]);
    else if (name == "--d" && has_value)
      options.d = parse_list(argv[++i]);
    else if (name == "--rounds" && has_value)
      options.rounds = std::max(1, std::atoi(argv[++i]));
    else {
      std::fprintf(stderr, "usage: %s [--smoke] [--fresh] [--json FILE] [--n LIST] [--d LIST] [--rounds R]\n", argv[0]);
      std::exit(2);
    }
  }
  return options;
}

// Fast and seeded; good enough to make keys of (splitmix64).
class FastRandom {
 public:
  explicit FastRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  float symmetric() { return static_cast<float>(static_cast<std::int64_t>(next()) >> 40) * 0x1p-23f; }  // [-1, 1)

 private:
  std::uint64_t state_;
};

inline void fill_unit(FastRandom& random, std::span<float> key) {
  double squares = 0;
  for (float& v : key) {
    v = random.symmetric();
    squares += double{v} * double{v};
  }
  const float scale = static_cast<float>(1.0 / std::sqrt(squares));
  for (float& v : key) v *= scale;
}

// Flat JSON objects, one per row.
class JsonRows {
 public:
  class Row {
   public:
    Row& text(const char* name, const std::string& value) { return raw(name, '"' + value + '"'); }
    Row& number(const char* name, double value) {
      char buffer[40];
      std::snprintf(buffer, sizeof buffer, "%.6g", value);
      return raw(name, buffer);
    }
    Row& raw(const char* name, const std::string& value) {
      body_ += (body_.empty() ? "\"" : ", \"") + std::string(name) + "\": " + value;
      return *this;
    }
    const std::string& body() const { return body_; }

   private:
    std::string body_;
  };
  Row& add() { return rows_.emplace_back(); }
  // True if the file was written, or none was asked for.
  bool write(const std::string& path, const Row& head) const {
    if (path.empty()) return true;
    std::ofstream out(path);
    out << "{" << head.body() << ", \"rows\": [";
    for (std::size_t i = 0; i < rows_.size(); ++i) out << (i ? ",\n  {" : "\n  {") << rows_[i].body() << "}";
    out << "\n]}\n";
    out.close();
    if (!out) std::fprintf(stderr, "cannot write %s\n", path.c_str());
    return static_cast<bool>(out);
  }

 private:
  std::vector<Row> rows_;
};

}  // namespace drift::bench
