// Chat templates and what reads the answers they ask for, as one translation unit.
#include "no_abort.hpp"
//
#include "../common/chat.cpp"
#include "chat-auto-parser-generator.cpp"
#include "chat-auto-parser-helpers.cpp"
#include "chat-diff-analyzer.cpp"
#include "chat-peg-parser.cpp"
#include "peg-parser.cpp"
