// log.hpp - llama.cpp writes its reasons to a log only; this keeps the last of them so that a Status can carry them.
//
// Threads: any. The log is one per process, as llama.cpp's own. Limits: the last 8 warnings and errors are kept.
#pragma once

#include <string>

namespace drift::engine {

// Starts llama.cpp once per process and routes its log here; quiet by default. Cheap when called again.
void start_llama();

// Also writes every line of llama.cpp's log to stderr (true), or keeps it quiet (false, the default).
void set_llama_verbose(bool verbose);

// Forgets the lines kept so far: call before an operation whose reasons are wanted.
void clear_llama_errors();

// Called with one sentence when llama.cpp meets a state it cannot go on from; it aborts the process when `handler` returns.
// Without one it prints a stack trace first. For the program's main(), once.
void on_llama_abort(void (*handler)(const char* message));

// The errors since clear_llama_errors(), or the warnings if there were none, without the names of llama.cpp's functions, joined
// by "; "; `otherwise` if there was neither. At most 300 characters, all printable.
std::string llama_errors(const std::string& otherwise);

// "0.5.0-dev (0c1e570)": version and commit of the llama.cpp this program was built with.
std::string llama_build();

}  // namespace drift::engine
