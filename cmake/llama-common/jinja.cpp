// The Jinja engine, as one translation unit. value.cpp comes first: it specialises a template the others use.
#include "no_abort.hpp"
//
#include "jinja/value.cpp"
//
#include "jinja/caps.cpp"
#include "jinja/lexer.cpp"
#include "jinja/parser.cpp"
#include "jinja/runtime.cpp"
#include "jinja/string.cpp"
