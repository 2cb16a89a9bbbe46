// bench_lookup - one thread, one query, k = 8: DRIFT's scan with f32, f16 and int8 keys beside FAISS IndexFlatIP and beside the
// machine's own read bandwidth, all interleaved in one run.
//
// "read" is the faster of two plain loops over as many bytes as the f32 keys have, so a row says how near the scan comes to
// merely reading its keys at that working set. "read 1 GiB" is the same for a buffer larger than any cache.
#include <array>
#include <functional>
#include <memory>

#include "bench/common.hpp"
#include "drift/bank/key_index.hpp"
#include "drift/base/aligned.hpp"
#include "drift/simd/simd.hpp"

#ifdef DRIFT_BENCH_FAISS
#include <faiss/IndexFlat.h>
#include <faiss/utils/utils.h>
#include <omp.h>
#endif

namespace drift::bench {
namespace {

constexpr std::size_t kNeighbors = 8;
constexpr std::size_t kQueries = 8;
using Found = std::array<bank::Neighbor, kNeighbors>;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
std::uint64_t
read_words(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[64] = {};
  for (std::size_t i = 0; i + 64 <= count; i += 64)
    for (std::size_t j = 0; j < 64; ++j) sums[j] ^= words[i + j];
  std::uint64_t total = 0;
  for (const std::uint64_t s : sums) total ^= s;
  return total;
}

volatile std::uint64_t sink;  // keeps the readers' work alive

// Nanoseconds to read the buffer once, the faster of two loops.
double read_ns(const AlignedBuffer<float>& buffer, int repeats) {
  double best = 1e300;
  for (int i = 0; i < repeats; ++i) {
    double start = now_ns();
    sink = read_words(reinterpret_cast<const std::uint64_t*>(buffer.data()), buffer.bytes() / 8);
    best = std::min(best, now_ns() - start);
    start = now_ns();
    sink = simd::all_finite(buffer.span());
    best = std::min(best, now_ns() - start);
  }
  return best;
}

struct Contender {
  std::string name;
  double bytes = 0;  // key bytes one lookup reads
  std::function<std::size_t(std::span<const float>, Found&)> lookup;
  std::vector<double> ns;  // per lookup, one sample a round
  std::array<Found, kQueries> found{};
};

Contender drift_contender(const char* name, std::uint32_t n, std::uint32_t d, bank::KeyType type, bool int8_scan,
                          const AlignedBuffer<float>& keys) {
  bank::BankConfig config;
  config.capacity = n;
  config.key_dim = d;
  config.vocab = 1;
  config.key_type = type;
  config.int8_scan = int8_scan;
  std::shared_ptr<bank::KeyIndex> index = bank::make_vector_index(config);
  for (std::uint32_t i = 0; i < n; ++i) index->assign(i, bank::KeyView{keys.span().subspan(std::size_t{i} * d, d)});
  const double element = int8_scan ? 1 : type == bank::KeyType::kF16 ? 2 : 4;
  return {name,
          element * n * d,
          [index, n](std::span<const float> q, Found& out) { return index->nearest(bank::KeyView{q}, n, out); },
          {},
          {}};
}

#ifdef DRIFT_BENCH_FAISS
Contender faiss_contender(std::uint32_t n, std::uint32_t d, const AlignedBuffer<float>& keys) {
  auto index = std::make_shared<faiss::IndexFlatIP>(d);
  index->add(n, keys.data());
  return {"faiss f32",
          4.0 * n * d,
          [index](std::span<const float> q, Found& out) {
            float scores[kNeighbors];
            faiss::Index::idx_t ids[kNeighbors];
            index->search(1, q.data(), kNeighbors, scores, ids);
            for (std::size_t i = 0; i < kNeighbors; ++i) out[i] = {static_cast<EntryId>(ids[i]), scores[i]};
            return kNeighbors;
          },
          {},
          {}};
}
#endif

double recall(const Contender& c, const Contender& reference) {
  std::size_t hits = 0;
  for (std::size_t q = 0; q < kQueries; ++q)
    for (const auto& want : reference.found[q])
      hits += std::any_of(c.found[q].begin(), c.found[q].end(), [&](const bank::Neighbor& n) { return n.entry == want.entry; });
  return static_cast<double>(hits) / (kQueries * kNeighbors);
}

// FNV-1a over the ids found, so that a "speed-up" that changes results is seen.
std::uint32_t result_hash(const Contender& c) {
  std::uint32_t hash = 2166136261u;
  for (const Found& f : c.found)
    for (const bank::Neighbor& n : f) hash = (hash ^ n.entry) * 16777619u;
  return hash;
}

// Runs one contender for about `target_ns` and adds one sample. The first lookup refills the caches and is not counted.
void measure(Contender& c, const std::vector<std::vector<float>>& queries, double target_ns) {
  Found found;
  double start = now_ns();
  c.lookup(queries[0], found);
  const double once = now_ns() - start;
  const std::size_t repeats = std::clamp<std::size_t>(static_cast<std::size_t>(target_ns / once), 2, 2'000);
  start = now_ns();
  for (std::size_t i = 0; i < repeats; ++i) c.lookup(queries[i % kQueries], c.found[i % kQueries]);
  c.ns.push_back((now_ns() - start) / static_cast<double>(repeats));
}

struct Shape {
  std::uint32_t n, d;
};

// False if a result is wrong: the exact contenders must agree.
bool run_shape(const Shape& shape, const Options& options, double big_read_gbps, JsonRows& json) {
  const std::size_t total = std::size_t{shape.n} * shape.d;
  AlignedBuffer<float> keys(total);
  FastRandom random(shape.n * 31u + shape.d);
  for (std::uint32_t i = 0; i < shape.n; ++i) fill_unit(random, keys.span().subspan(std::size_t{i} * shape.d, shape.d));
  std::vector<std::vector<float>> queries(kQueries, std::vector<float>(shape.d));
  for (auto& q : queries) fill_unit(random, q);

  std::vector<Contender> contenders;
  contenders.push_back(drift_contender("drift f32", shape.n, shape.d, bank::KeyType::kF32, false, keys));
#ifdef DRIFT_BENCH_FAISS
  contenders.push_back(faiss_contender(shape.n, shape.d, keys));
#endif
  contenders.push_back(drift_contender("drift f16", shape.n, shape.d, bank::KeyType::kF16, false, keys));
  contenders.push_back(drift_contender("drift int8", shape.n, shape.d, bank::KeyType::kF32, true, keys));

  std::vector<double> reads;
  for (int round = 0; round < options.rounds; ++round) {
    reads.push_back(read_ns(keys, 3));
    for (Contender& c : contenders) measure(c, queries, options.smoke ? 1e5 : 2e7);
  }
  for (Contender& c : contenders)
    for (std::size_t q = 0; q < kQueries; ++q) c.lookup(queries[q], c.found[q]);

  const double read_gbps = static_cast<double>(keys.bytes()) / summarise(reads).median;
  const Contender& reference = contenders[0];
  const Contender* faiss = nullptr;
  for (const Contender& c : contenders)
    if (c.name == "faiss f32") faiss = &c;
  bool good = true;
  for (const Contender& c : contenders) {
    const Summary s = summarise(c.ns);
    const double gbps = c.bytes / s.median;
    const double versus = faiss ? summarise(faiss->ns).median / s.median : 0;
    const double r = recall(c, reference);
    std::printf("%6u %5u  %-10s %12.0f  [%10.0f %10.0f] %7.2f %8.0f%% %8.0f%% %8.2fx %7.3f  %08x\n", shape.n, shape.d,
                c.name.c_str(), s.median, s.low, s.high, gbps, 100 * gbps / read_gbps, 100 * gbps / big_read_gbps, versus, r,
                result_hash(c));
    json.add()
        .number("n", shape.n)
        .number("d", shape.d)
        .text("what", c.name)
        .number("ns_median", s.median)
        .number("ns_p25", s.low)
        .number("ns_p75", s.high)
        .number("gb_per_s", gbps)
        .number("read_gb_per_s_same_size", read_gbps)
        .number("read_gb_per_s_1gib", big_read_gbps)
        .number("speed_vs_faiss_f32", versus)
        .number("recall_at_8", r)
        .number("result_hash", result_hash(c));
    // Sums in different order may swap near-equal neighbours; more than that is an error.
    if (c.name.find("f32") != std::string::npos && r < 0.98) good = false;
    if (r < 0.9) good = false;
  }
  std::fflush(stdout);
  if (!good) std::fprintf(stderr, "results disagree at n = %u, d = %u\n", shape.n, shape.d);
  return good;
}

int run(const Options& options) {
  std::string faiss_text = "not built in";
#ifdef DRIFT_BENCH_FAISS
  omp_set_num_threads(1);
  faiss_text = std::to_string(FAISS_VERSION_MAJOR) + "." + std::to_string(FAISS_VERSION_MINOR) + "." +
               std::to_string(FAISS_VERSION_PATCH) + ", compile options: " + faiss::get_compile_options() +
               "(no AVX2 listed: plain x86-64, SSE2)";
#endif
  std::printf("Highway target %s; FAISS %s; one thread, one query, k = %zu\n", simd::target_name(), faiss_text.c_str(),
              kNeighbors);
  const AlignedBuffer<float> big((options.smoke ? std::size_t{1} << 20 : std::size_t{1} << 30) / sizeof(float));
  std::vector<double> reads;
  for (int i = 0; i < (options.smoke ? 1 : 5); ++i) reads.push_back(static_cast<double>(big.bytes()) / read_ns(big, 1));
  const double big_read_gbps = summarise(reads).median;
  std::printf("read bandwidth, one thread, %zu MiB: %.2f GB/s\n", big.bytes() >> 20, big_read_gbps);
  std::printf("%6s %5s  %-10s %12s  %23s %7s %9s %9s %9s %7s  %s\n", "N", "d", "what", "ns/lookup", "[quartiles]", "GB/s",
              "of read", "of 1GiB", "vs faiss", "recall", "hash");
  std::vector<std::uint32_t> ns = options.n, ds = options.d;
  if (ns.empty())
    ns = options.smoke ? std::vector<std::uint32_t>{64, 300} : std::vector<std::uint32_t>{1'024, 4'096, 16'384, 65'536};
  if (ds.empty()) ds = options.smoke ? std::vector<std::uint32_t>{64, 70} : std::vector<std::uint32_t>{64, 896, 2'560};
  JsonRows json;
  bool good = true;
  for (const std::uint32_t d : ds)
    for (const std::uint32_t n : ns) good = run_shape({n, d}, options, big_read_gbps, json) && good;
  JsonRows::Row head;
  head.text("bench", "lookup").number("version", 1).text("highway_target", simd::target_name()).text("faiss", faiss_text);
  return json.write(options.json, head) && good ? 0 : 1;
}

}  // namespace
}  // namespace drift::bench

int main(int argc, char** argv) {
  drift::bench::Options options = drift::bench::parse_options(argc, argv);
  if (options.smoke) options.rounds = 2;
  return drift::bench::run(options);
}
