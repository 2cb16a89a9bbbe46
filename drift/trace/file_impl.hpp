// file_impl.hpp - what writer and reader of a trace share: the tables, the header as text, what makes a step sound. Internal.
//
// Threads: pure functions.
#pragma once

#include <array>
#include <map>
#include <span>
#include <string>

#include "drift/sqlite/database.hpp"
#include "drift/trace/file.hpp"

namespace drift::trace {

inline constexpr std::int32_t kApplicationId = 0x44524643;  // "DRFC"
inline constexpr std::int32_t kVersion = 1;                 // user_version

// In order of creation.
inline constexpr std::array<sqlite::SchemaObject, 7> kSchema{{
    {"table", "meta", "CREATE TABLE meta(key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)"},
    {"table", "prompts",
     "CREATE TABLE prompts(prompt INTEGER PRIMARY KEY, id TEXT NOT NULL, domain TEXT NOT NULL, kind TEXT NOT NULL, split TEXT "
     "NOT "
     "NULL, sequence INTEGER NOT NULL, tokens BLOB NOT NULL, ending TEXT NOT NULL, prefill_ns INTEGER NOT NULL, steps INTEGER "
     "NOT "
     "NULL, emitted INTEGER NOT NULL)"},
    {"table", "steps",
     "CREATE TABLE steps(prompt INTEGER NOT NULL, step INTEGER NOT NULL, first INTEGER NOT NULL, proposed INTEGER NOT NULL, "
     "accepted INTEGER NOT NULL, emitted INTEGER NOT NULL, sequences INTEGER NOT NULL, draft_ns INTEGER NOT NULL, verify_ns "
     "INTEGER NOT NULL, sample_ns INTEGER NOT NULL, lookup_ns INTEGER NOT NULL, bias_ns INTEGER NOT NULL, residual_ns INTEGER "
     "NOT "
     "NULL, commit_ns INTEGER NOT NULL, total_ns INTEGER NOT NULL, PRIMARY KEY(prompt, step))"},
    {"table", "proposals",
     "CREATE TABLE proposals(prompt INTEGER NOT NULL, step INTEGER NOT NULL, place INTEGER NOT NULL, token INTEGER NOT NULL, q "
     "REAL "
     "NOT NULL, accepted INTEGER NOT NULL, from_bank INTEGER NOT NULL, gain REAL NOT NULL, similarity REAL NOT NULL, overlap "
     "REAL "
     "NOT NULL, match INTEGER NOT NULL, PRIMARY KEY(prompt, step, place))"},
    {"table", "tokens",
     "CREATE TABLE tokens(prompt INTEGER NOT NULL, position INTEGER NOT NULL, step INTEGER NOT NULL, token INTEGER NOT NULL, "
     "origin "
     "TEXT NOT NULL, PRIMARY KEY(prompt, position))"},
    {"table", "target_rows",
     "CREATE TABLE target_rows(prompt INTEGER NOT NULL, position INTEGER NOT NULL, seen INTEGER NOT NULL, rest REAL, tokens BLOB "
     "NOT NULL, logits BLOB NOT NULL, PRIMARY KEY(prompt, position))"},
    {"table", "draft_rows",
     "CREATE TABLE draft_rows(prompt INTEGER NOT NULL, position INTEGER NOT NULL, seen INTEGER NOT NULL, rest REAL, tokens BLOB "
     "NOT "
     "NULL, logits BLOB NOT NULL, hidden BLOB NOT NULL, PRIMARY KEY(prompt, position))"},
}};

// The largest row: a prompt of kMaxPromptTokens.
inline constexpr sqlite::Kind kTrace{"trace", kApplicationId, kVersion, kSchema, 80 << 20};

using Meta = std::map<std::string, std::string>;

// What `meta` holds besides the header.
struct Totals {
  bool partial = false;
  std::uint64_t prompts = 0;
};

Meta make_meta(const Header& header, const Totals& totals);
// Fails with kCorrupt naming the field.
Status parse_meta(const Meta& meta, Header& header, Totals& totals);

// Fails with kInvalid naming what is wrong.
Status check_prompt(const Prompt& prompt, const Header& header);
Status check_ending(const std::string& ending);

// Where in the answer a step must stand.
struct Place {
  std::uint64_t step = 0;
  Pos first = 0;
};

// Whether a step continues an answer at `place` and says nothing that contradicts itself. Fails with kInvalid.
Status check_step(const StepEvent& event, const Place& place, std::size_t vocab);

// How many proposals stood.
std::size_t accepted_of(const StepEvent& event);

}  // namespace drift::trace
