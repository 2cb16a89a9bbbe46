#include "tests/contract/llama_models.hpp"
