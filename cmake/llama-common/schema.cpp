// JSON and JSON schema to grammar, as one translation unit.
#include "no_abort.hpp"
//
#include "json.cpp"
//
#include "json-schema.cpp"
#include "trie.cpp"
#include "unicode.cpp"

// The converter writes to stderr what it leaves out of a schema, and with it the request's own text. Here that is an error.
template <class... Rest>
[[noreturn]] static void refuse_incomplete(FILE*, const char*, const char* what, Rest...) {
  throw std::invalid_argument(what);
}
#define fprintf refuse_incomplete
#include "json-schema-to-grammar.cpp"
#undef fprintf
