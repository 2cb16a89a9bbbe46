#include "drift/bank/config.hpp"

#include <sstream>

#include "drift/bank/layout.hpp"

namespace drift::bank {
namespace {

template <class T>
Status out_of_bounds(const char* field, T value, const char* bounds) {
  std::ostringstream text;
  text << "bank config: " << field << " = " << value << " is outside " << bounds;
  return {Code::kInvalid, text.str()};
}

}  // namespace

Status BankConfig::validate() const {
  if (capacity < 1 || capacity > kMaxCapacity) return out_of_bounds("capacity (N)", capacity, "1 .. 65536");
  if (key_dim < 1 || key_dim > kMaxKeyDim) return out_of_bounds("key_dim (d)", key_dim, "1 .. 16384");
  if (support < 1 || support > kMaxSupport) return out_of_bounds("support (m)", support, "1 .. 1024");
  if (vocab < 1 || vocab > kMaxVocab) return out_of_bounds("vocab", vocab, "1 .. 16777216");
  if (key_type != KeyType::kF32 && key_type != KeyType::kF16 && key_type != KeyType::kHash)
    return out_of_bounds("key_type", int{static_cast<std::uint8_t>(key_type)}, "0 (f32), 1 (f16), 2 (hash)");
  if (key_type == KeyType::kHash && (key_dim != 1 || int8_scan || standardise))
    return {Code::kInvalid, "bank config: hashed keys have key_dim 1, no int8_scan and no standardise"};
  if (rate != RateRule::kFixed && rate != RateRule::kCount && rate != RateRule::kError)
    return out_of_bounds("rate", int{static_cast<std::uint8_t>(rate)}, "0 (fixed), 1 (count), 2 (error)");
  // Written so that NaN fails too.
  if (!(tau >= -1.0f && tau <= 1.0f)) return out_of_bounds("tau", tau, "[-1, 1]");
  if (!(eta > 0.0f && eta <= 1.0f)) return out_of_bounds("eta", eta, "(0, 1]");
  if (bytes() > kMaxBankBytes) {
    std::ostringstream text;
    text << "bank config: capacity " << capacity << ", key_dim " << key_dim << ", support " << support << " need " << bytes()
         << " bytes, the limit is " << kMaxBankBytes << "; lower the capacity, or use f16 keys";
    return {Code::kLimit, text.str()};
  }
  return Status::ok();
}

std::uint64_t BankConfig::bytes() const { return entry_bytes(*this) + key_bytes(*this); }

}  // namespace drift::bank
