// vector_index.cpp - keys as unit vectors, found by an exact scan.
//
// Rows are padded with zeros to whole cache lines. With int8_scan a second copy holds each row as round(x / scale) with
// scale = max|x| / 127. It is always derived from the key of record, so it never has to be stored. A lookup then scans the
// copy and rescores the best max(4k, 32) rows by their keys of record: scores are exact, the set of candidates approximate.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "drift/bank/key_index.hpp"
#include "drift/bank/layout.hpp"
#include "drift/bank/top_neighbors.hpp"
#include "drift/base/aligned.hpp"
#include "drift/base/check.hpp"
#include "drift/simd/simd.hpp"

namespace drift::bank {
namespace {

constexpr std::size_t kScanRows = 256;  // scores of this many rows at a time stay in the first-level cache
constexpr std::size_t kMaxCandidates = 4 * std::size_t{kMaxNeighbors};
constexpr double kUnitToleranceF32 = 1e-4;  // float rounding of a normalised vector of 16,384 elements is far below
constexpr double kUnitToleranceF16 = 2e-3;  // each half is off by up to 2^-11 of itself

// Rounding may leave a cosine of unit vectors a little outside its range.
float as_cosine(float score) { return std::clamp(score, -1.0f, 1.0f); }

class VectorIndex final : public KeyIndex {
 public:
  explicit VectorIndex(const BankConfig& config)
      : dim_(config.key_dim),
        half_(config.key_type == KeyType::kF16),
        rounded_scan_(config.int8_scan),
        stride_(padded_row(dim_, half_ ? sizeof(simd::f16_bits) : sizeof(float))),
        rounded_stride_(padded_row(dim_, 1)),
        full_(half_ ? 0 : config.capacity * stride_),
        halves_(half_ ? config.capacity * stride_ : 0),
        rounded_(rounded_scan_ ? config.capacity * rounded_stride_ : 0),
        scales_(rounded_scan_ ? config.capacity : 0),
        scratch_(dim_) {}

  std::size_t nearest(const KeyView& key, std::uint32_t size, std::span<Neighbor> out) const override {
    DRIFT_CHECK(key.vector.size() == dim_, "a key has key_dim elements");
    DRIFT_CHECK(out.size() <= kMaxNeighbors, "at most kMaxNeighbors are looked up");
    const std::size_t candidates = std::max<std::size_t>(4 * out.size(), 32);
    if (!rounded_scan_ || size <= candidates) return scan_record(key.vector, size, out);
    std::array<Neighbor, kMaxCandidates> found;
    const std::size_t count = scan_rounded(key.vector, size, {found.data(), std::min(candidates, found.size())});
    TopNeighbors top(out);
    for (std::size_t i = 0; i < count; ++i) top.offer({found[i].entry, similarity(key, found[i].entry)});
    return top.finish();
  }

  float similarity(const KeyView& key, EntryId entry) const override {
    float score = 0;
    score_record(key.vector, entry, 1, &score);
    return as_cosine(score);
  }

  void copy(EntryId entry, std::span<float> out) const override {
    DRIFT_CHECK(out.size() == dim_, "a key has key_dim elements");
    read(entry, out);
  }

  void assign(EntryId entry, const KeyView& key) override {
    DRIFT_CHECK(key.vector.size() == dim_, "a key has key_dim elements");
    store(entry, key.vector);
  }

  void move(EntryId entry, const KeyView& key, float rate) override {
    DRIFT_CHECK(key.vector.size() == dim_, "a key has key_dim elements");
    read(entry, scratch_.span());
    for (std::size_t i = 0; i < dim_; ++i) scratch_[i] = (1.0f - rate) * scratch_[i] + rate * key.vector[i];
    // Opposite keys can cancel (only where tau < 0): the newer one stays.
    if (!normalise(scratch_.span())) std::copy(key.vector.begin(), key.vector.end(), scratch_.data());
    store(entry, scratch_.span());
  }

  void transform(EntryId entry, const std::function<void(std::span<float>)>& convert) override {
    read(entry, scratch_.span());
    convert(scratch_.span());
    DRIFT_CHECK(simd::all_finite(scratch_.span()), "a conversion of keys gives finite values");
    if (!normalise(scratch_.span())) scratch_[0] = 1.0f;  // the zero vector has no direction: any unit vector will do
    store(entry, scratch_.span());
  }

  std::size_t record_bytes() const override { return dim_ * (half_ ? sizeof(simd::f16_bits) : sizeof(float)); }

  void read_record(EntryId entry, std::span<std::byte> out) const override {
    DRIFT_CHECK(out.size() == record_bytes(), "a record has record_bytes() bytes");
    std::memcpy(out.data(), record(entry), out.size());
  }

  Status check_record(std::span<const std::byte> in) const override {
    if (in.size() != record_bytes())
      return {Code::kCorrupt,
              "a key has " + std::to_string(in.size()) + " bytes, " + std::to_string(record_bytes()) + " expected"};
    double squares = 0;
    for (std::size_t i = 0; i < dim_; ++i) {
      float value;
      if (half_) {
        simd::f16_bits bits;
        std::memcpy(&bits, in.data() + i * sizeof(bits), sizeof(bits));
        simd::scalar::from_f16(&bits, {&value, 1});
      } else {
        std::memcpy(&value, in.data() + i * sizeof(value), sizeof(value));
      }
      if (!std::isfinite(value)) return {Code::kCorrupt, "a key's element " + std::to_string(i) + " is not a finite number"};
      squares += double{value} * double{value};
    }
    const double length = std::sqrt(squares);
    if (std::fabs(length - 1.0) > (half_ ? kUnitToleranceF16 : kUnitToleranceF32))
      return {Code::kCorrupt, "a key has length " + std::to_string(length) + ", not 1"};
    return Status::ok();
  }

  Status write_record(EntryId entry, std::span<const std::byte> in) override {
    DRIFT_TRY(check_record(in));
    if (half_)
      std::memcpy(halves_.data() + entry * stride_, in.data(), in.size());
    else
      std::memcpy(full_.data() + entry * stride_, in.data(), in.size());
    round_row(entry);
    return Status::ok();
  }

  std::uint64_t bytes() const override {
    return full_.bytes() + halves_.bytes() + rounded_.bytes() + scales_.bytes() + scratch_.bytes();
  }

 private:
  const void* record(EntryId entry) const {
    return half_ ? static_cast<const void*>(halves_.data() + entry * stride_)
                 : static_cast<const void*>(full_.data() + entry * stride_);
  }

  void read(EntryId entry, std::span<float> out) const {
    if (half_)
      simd::from_f16(halves_.data() + entry * stride_, out);
    else
      std::memcpy(out.data(), full_.data() + entry * stride_, dim_ * sizeof(float));
  }

  void store(EntryId entry, std::span<const float> key) {
    if (half_)
      simd::to_f16(key, halves_.data() + entry * stride_);
    else
      std::memcpy(full_.data() + entry * stride_, key.data(), dim_ * sizeof(float));
    round_row(entry);
  }

  // False, and x unchanged, if x is too short to have a direction.
  static bool normalise(std::span<float> x) {
    const float length = simd::norm(x);
    if (!(length > 1e-20f)) return false;
    for (float& v : x) v /= length;
    return true;
  }

  // The int8 copy of a row, from its key of record as a restored bank would read it.
  void round_row(EntryId entry) {
    if (!rounded_scan_) return;
    std::array<float, kMaxKeyDim> key;
    read(entry, {key.data(), dim_});
    scales_[entry] = round_to_int8({key.data(), dim_}, rounded_.data() + entry * rounded_stride_);
  }

  static float round_to_int8(std::span<const float> x, std::int8_t* out) {
    float largest = 0;
    for (const float v : x) largest = std::max(largest, std::fabs(v));
    const float up = largest > 0 ? 127.0f / largest : 0.0f;
    // Half away from zero by truncation: compilers turn this into vector code, unlike lrintf.
    for (std::size_t i = 0; i < x.size(); ++i) out[i] = static_cast<std::int8_t>(x[i] * up + std::copysign(0.5f, x[i]));
    return largest / 127.0f;
  }

  void score_record(std::span<const float> key, std::size_t first, std::size_t count, float* scores) const {
    if (half_)
      simd::dot_rows_f16(halves_.data() + first * stride_, stride_, count, key, scores);
    else
      simd::dot_rows(full_.data() + first * stride_, stride_, count, key, scores);
  }

  std::size_t scan_record(std::span<const float> key, std::size_t size, std::span<Neighbor> out) const {
    TopNeighbors top(out);
    std::array<float, kScanRows> scores;
    for (std::size_t first = 0; first < size; first += kScanRows) {
      const std::size_t count = std::min(kScanRows, size - first);
      score_record(key, first, count, scores.data());
      for (std::size_t i = 0; i < count; ++i) top.offer({static_cast<EntryId>(first + i), as_cosine(scores[i])});
    }
    return top.finish();
  }

  // Scores here lack the query's scale: it is the same for all rows.
  std::size_t scan_rounded(std::span<const float> key, std::size_t size, std::span<Neighbor> out) const {
    std::array<std::int8_t, kMaxKeyDim> query;
    round_to_int8(key, query.data());
    TopNeighbors top(out);
    std::array<std::int32_t, kScanRows> dots;
    for (std::size_t first = 0; first < size; first += kScanRows) {
      const std::size_t count = std::min(kScanRows, size - first);
      simd::dot_rows_i8(rounded_.data() + first * rounded_stride_, rounded_stride_, count, {query.data(), dim_}, dots.data());
      for (std::size_t i = 0; i < count; ++i)
        top.offer({static_cast<EntryId>(first + i), scales_[first + i] * static_cast<float>(dots[i])});
    }
    return top.finish();
  }

  const std::size_t dim_;
  const bool half_;
  const bool rounded_scan_;
  const std::size_t stride_;              // elements between rows of record
  const std::size_t rounded_stride_;      // bytes between rows of the int8 copy
  AlignedBuffer<float> full_;             // [capacity, stride], f32 of record; empty if f16
  AlignedBuffer<simd::f16_bits> halves_;  // [capacity, stride], f16 of record; empty if f32
  AlignedBuffer<std::int8_t> rounded_;    // [capacity, rounded_stride]; empty without int8_scan
  AlignedBuffer<float> scales_;           // [capacity]; empty without int8_scan
  AlignedBuffer<float> scratch_;          // [dim], one key while it is changed
};

}  // namespace

std::unique_ptr<KeyIndex> make_vector_index(const BankConfig& config) { return std::make_unique<VectorIndex>(config); }

}  // namespace drift::bank
