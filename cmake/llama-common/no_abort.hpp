// no_abort.hpp - llama.cpp's assertions throw in here: a request or a template never ends the process.
#pragma once

#include <ggml.h>

#include <stdexcept>

#undef GGML_ASSERT
#define GGML_ASSERT(x)                                                      \
  do {                                                                      \
    if (!(x)) throw std::logic_error("llama-common: " #x " does not hold"); \
  } while (false)
#undef GGML_ABORT
#define GGML_ABORT(...) throw std::logic_error("llama-common: " #__VA_ARGS__)
