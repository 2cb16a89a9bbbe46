// testing.hpp - what the tests of decode/ do alike.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "drift/decode/stepper.hpp"

namespace drift::decode {

// Steps until the sequence ends, or a step fails, which is told.
inline std::vector<trace::StepEvent> run_to_end(Stepper& stepper, Sequence& sequence) {
  std::vector<trace::StepEvent> all, events;
  Sequence* const one[] = {&sequence};
  while (sequence.ending() == Ending::kRunning) {
    const Status stepped = stepper.step(one, events);
    EXPECT_TRUE(stepped.is_ok()) << stepped.message();
    if (!stepped.is_ok()) break;
    all.push_back(events[0]);
  }
  return all;
}

}  // namespace drift::decode
