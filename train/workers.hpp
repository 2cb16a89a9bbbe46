// workers.hpp - the same work on a few threads, each with a whole matrix library to itself.
//
// LibTorch on two threads splits every small product and waits twice; two halves of a batch on one thread each do not.
#pragma once

#include <functional>
#include <future>
#include <vector>

namespace drift::train {

// task(0) .. task(count - 1), each on its own thread (the last on the caller's). Rethrows what the first failed one threw, once
// all have ended. Requires: count >= 1, and engine::use_threads(1) before.
inline void run_workers(int count, const std::function<void(int)>& task) {
  std::vector<std::future<void>> others;
  for (int i = 0; i + 1 < count; ++i) others.push_back(std::async(std::launch::async, task, i));
  std::exception_ptr failure;
  try {
    task(count - 1);
  } catch (...) {
    failure = std::current_exception();
  }
  for (std::future<void>& other : others) {
    try {
      other.get();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace drift::train
