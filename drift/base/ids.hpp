// ids.hpp - the small integers everything is named by.
#pragma once

#include <cstdint>

namespace drift {

using Token = std::int32_t;      // index into the vocabulary, 0 .. vocab-1
using SeqId = std::int32_t;      // a sequence of an Engine
using Pos = std::int32_t;        // position in a sequence, 0 = first prompt token
using NodeIndex = std::int32_t;  // a node of a DraftTree, or of a sequence's nodes since the last keep()
using EntryId = std::uint32_t;   // a slot of a bank, 0 .. capacity-1

inline constexpr NodeIndex kPrefix = -1;  // as a parent: the node continues the kept text
inline constexpr Token kNoToken = -1;

}  // namespace drift
