// bench_snapshot - what a running snapshot of the largest practical bank (N = 65,536, d = 2,560, f32) adds to a decoding step.
//
// A simulated step does the bank's part of a real one (a commit of 8 lessons, each with its neighbours) and then works for a fixed
// time in place of the two models (a real one takes longer). Two equal banks take turns step by step, so that whatever else the
// machine does meets both: one always has a snapshot running, advanced by kSnapshotStepBytes a step, the other never. The first
// step of a snapshot contains start(). The image's pages are touched beforehand (Snapshot::room), unless --fresh.
#include <memory>

#include "bench/common.hpp"
#include "drift/bank/bank.hpp"
#include "drift/bank/snapshot.hpp"

namespace drift::bench {
namespace {

constexpr std::size_t kLessons = 8;
constexpr std::size_t kNeighbors = 8;
constexpr double kModelNs = 2e6;

class Stream {
 public:
  Stream(const bank::BankConfig& config, std::uint64_t seed)
      : config_(config), random_(seed), keys_(kLessons, std::vector<float>(config.key_dim)) {
    for (std::uint32_t i = 0; i < config.support; ++i) tokens_.push_back(static_cast<Token>(7 * i));
    values_.assign(config.support, 1.0f);
  }

  // Neighbours stand for a lookup made earlier in the step: distinct random entries, scores below tau, so that each lesson
  // replaces the least recently used entry, the dearest kind of commit.
  void commit(bank::Bank& bank) {
    std::vector<bank::Lesson> lessons;
    std::vector<std::vector<bank::Neighbor>> neighbors(kLessons);
    for (std::size_t i = 0; i < kLessons; ++i) {
      fill_unit(random_, keys_[i]);
      for (std::size_t j = 0; j < kNeighbors; ++j)
        neighbors[i].push_back({static_cast<EntryId>(random_.next() % bank.size()), 0.5f - 0.01f * static_cast<float>(j)});
      lessons.push_back({keys_[i], neighbors[i], tokens_, values_});
    }
    bank.commit({}, lessons);
  }

 private:
  bank::BankConfig config_;
  FastRandom random_;
  std::vector<std::vector<float>> keys_;
  std::vector<Token> tokens_;
  std::vector<float> values_;
};

void work_for(double ns) {
  for (const double end = now_ns() + ns; now_ns() < end;) {
  }
}

// Fills a bank from an image made by hand: committing 65,536 lessons would scan 65,536 times.
std::unique_ptr<bank::Bank> full_bank(const bank::BankConfig& config) {
  bank::BankImage image;
  image.config = config;
  image.size = config.capacity;
  image.use_counter = config.capacity;
  const std::size_t n = config.capacity;
  image.lengths.assign(n, config.support);
  image.counts.assign(n, 1);
  image.errors.assign(n, 1.0f);
  image.values.assign(n * config.support, 0.5f);
  image.keys.resize(n * config.key_dim * sizeof(float));
  FastRandom random(1);
  for (std::size_t i = 0; i < n; ++i) {
    image.last_used.push_back(i + 1);
    for (std::uint32_t j = 0; j < config.support; ++j) image.tokens.push_back(static_cast<Token>(3 * j));
    fill_unit(random, {reinterpret_cast<float*>(image.keys.data()) + i * config.key_dim, config.key_dim});
  }
  auto bank = bank::Bank::from_image(image);
  if (!bank.is_ok()) std::fprintf(stderr, "%s\n", bank.status().message().c_str());
  return bank.is_ok() ? std::move(bank).value() : nullptr;
}

int run(const Options& options) {
  bank::BankConfig config;
  config.capacity = options.n.empty() ? (options.smoke ? 512 : 65'536) : options.n[0];
  config.key_dim = options.d.empty() ? (options.smoke ? 64 : 2'560) : options.d[0];
  config.vocab = 151'936;
  double start = now_ns();
  const std::unique_ptr<bank::Bank> bank = full_bank(config), quiet_bank = full_bank(config);
  if (bank == nullptr || quiet_bank == nullptr) return 1;
  std::printf("two banks of %llu MiB made and filled in %.0f ms\n", static_cast<unsigned long long>(bank->bytes() >> 20),
              (now_ns() - start) * 1e-6);
  Stream stream(config, 2), quiet_stream(config, 2);
  const double model_ns = options.smoke ? 1e4 : kModelNs;

  std::vector<double> without, with, starts, advances;
  for (int round = 0; round < options.rounds; ++round) {
    std::unique_ptr<bank::Snapshot> snapshot;
    // A room made before the step, as a saving thread would; --fresh shows what its pages cost without one.
    bank::BankImage room;
    if (!options.fresh) room = bank::Snapshot::room(config).value();
    do {
      start = now_ns();
      quiet_stream.commit(*quiet_bank);
      work_for(model_ns);
      without.push_back(now_ns() - start);

      start = now_ns();
      if (snapshot == nullptr) {
        snapshot = bank::Snapshot::start(*bank, std::move(room)).value();
        starts.push_back(now_ns() - start);
      }
      stream.commit(*bank);
      const double before = now_ns();
      snapshot->advance(bank::kSnapshotStepBytes);
      advances.push_back(now_ns() - before);
      work_for(model_ns);
      with.push_back(now_ns() - start);
    } while (!snapshot->done());
    if (snapshot->take().keys.size() != bank->keys().record_bytes() * bank->size()) return 1;
  }
  JsonRows json;
  const auto report = [&](const char* what, const std::vector<double>& ns) {
    std::printf("%-22s n %6zu  median %9.1f us  p99 %9.1f us  max %9.1f us\n", what, ns.size(), quantile(ns, 0.5) * 1e-3,
                quantile(ns, 0.99) * 1e-3, quantile(ns, 1.0) * 1e-3);
    json.add()
        .text("what", what)
        .number("samples", static_cast<double>(ns.size()))
        .number("us_median", quantile(ns, 0.5) * 1e-3)
        .number("us_p99", quantile(ns, 0.99) * 1e-3)
        .number("us_max", quantile(ns, 1.0) * 1e-3);
  };
  report("step without snapshot", without);
  report("step with snapshot", with);
  report("  of it start()", starts);
  report("  of it advance()", advances);
  const double added_ms = (quantile(with, 0.99) - quantile(without, 0.99)) * 1e-6;
  std::printf("a running snapshot adds %.3f ms to p99 (limit 2 ms)\n", added_ms);
  JsonRows::Row head;
  head.text("bench", "snapshot")
      .number("version", 1)
      .number("n", config.capacity)
      .number("d", config.key_dim)
      .number("added_p99_ms", added_ms);
  return json.write(options.json, head) ? 0 : 1;
}

}  // namespace
}  // namespace drift::bench

int main(int argc, char** argv) {
  drift::bench::Options options = drift::bench::parse_options(argc, argv);
  if (options.smoke) options.rounds = 2;
  return drift::bench::run(options);
}
