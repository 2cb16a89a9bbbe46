// blas.hpp - OpenBLAS with the kernels of the CPU it runs on.
//
// OpenBLAS chooses its kernels when it is loaded, by the model number of the CPU. One it does not know, because the CPU is newer than
// the library or a hypervisor hides the number, gets the oldest kernels, without AVX: measured four to five times slower here.
// The variable OPENBLAS_CORETYPE overrides the choice, but it is read at load: the program has to be started anew.
#pragma once

#include <string>
#include <string_view>

namespace drift::engine {

// The kernels that should be used in place of `chosen`, by name; empty: leave it. `avx2` and `avx512` say what the CPU can do.
std::string better_blas_kernels(std::string_view chosen, bool avx2, bool avx512);

// Call first thing in main(), before threads, files and signals. If OpenBLAS is loaded with kernels that are too old for this CPU and
// OPENBLAS_CORETYPE is not set, sets it and starts the program anew in its place (same process, arguments and files); else, or if that
// fails, returns. At most one restart.
void use_fitting_blas_kernels(char** argv);

}  // namespace drift::engine
