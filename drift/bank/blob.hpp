// blob.hpp - a bank's image as one block of bytes: how banks that are not the main one travel in a bank file's extras.
//
// Layout, little-endian: the header (blob.cpp), then per array its elements in the order of BankImage; of tokens and values only
// the used ones. The file's content hash covers it; every bound is checked all the same.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "drift/bank/bank.hpp"

namespace drift::bank {

std::vector<std::byte> to_blob(const BankImage& image);
// Fails with kCorrupt (wrong size, a bound), kForeign (a newer version). Bank::from_image checks the content once more.
Result<BankImage> from_blob(std::span<const std::byte> bytes);
// The most bytes to_blob gives for a full bank of this configuration.
std::uint64_t blob_bytes(const BankConfig& config);

}  // namespace drift::bank
