// The engine contract on the toy engine, bit for bit.
#include "drift/testing/toy_engine.hpp"
#include "tests/contract/contract.hpp"

namespace drift::engine {
namespace {

ContractCase toy_case(const char* name, std::size_t hidden_width) {
  ContractCase contract;
  contract.name = name;
  contract.make = [hidden_width]() -> std::unique_ptr<Engine> {
    testing::ToyModel model = testing::random_model(/*seed=*/7, /*vocab=*/32, hidden_width, /*order=*/64, /*spread=*/3.0F);
    model.context = 96;
    model.max_sequences = 4;
    return std::make_unique<testing::ToyEngine>(std::move(model));
  };
  return contract;
}

INSTANTIATE_TEST_SUITE_P(Toy, EngineContract, ::testing::Values(toy_case("target", 0), toy_case("draft", 16)),
                         contract_case_name);

}  // namespace
}  // namespace drift::engine
