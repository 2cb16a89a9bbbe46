"""pair_test.py - the real pair of README's table decodes: every mode's text is plain decoding's, row by row."""

import json

import program
from program import ProgramTest, model, read

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
PROMPTS = [{"id": "law", "kind": "prefix", "prompt": "This agreement is made between"},
           {"id": "code", "kind": "instruction", "prompt": "Write a Python function that reverses a list."}]


class Pair(ProgramTest):
    def compare(self, *arguments):
        out = self.path("out.json")
        self.worked("compare", "-m", model(TARGET), "-md", model(DRAFT), "--prompts", self.path("p.jsonl", "\n".join(map(json.dumps, PROMPTS))),
                    "-n", "16", "-c", "256", "--verify-rows-one-by-one", "--json", out, *arguments)
        modes = {mode["label"]: mode for mode in json.loads(read(out))["modes"]}
        for mode in modes.values():
            self.assertEqual(mode["diverged_prompts"], 0)
        return modes

    def test_greedy(self):
        modes = self.compare("--temp", "0")
        self.assertGreater(modes["static"]["accepted"], 0)
        self.assertGreater(modes["drift"]["bank_entries"], 0)

    def test_sampled(self):
        self.compare("--temp", "0.8")


if __name__ == "__main__":
    program.main()
