"""drift run: streaming, banks, interruption, and every input it must refuse."""

import json
import os
import signal
import time

import program
from program import ProgramTest, model, start


class Refusals(ProgramTest):
    def test_command_line(self):
        self.refused(["subcommand"])
        self.refused(["-m", "required"], "run", "-p", "x")
        base = ("run", "-m", "x", "-p", "a")
        self.refused(["-n is '0'", "1 to"], *base, "-n", "0")
        self.refused(["--lambda is 'nan'", "0 to 10"], *base, "--lambda", "nan")
        self.refused(["--temp is '1e3'", "0 to 100"], *base, "--temp", "1e3")
        self.refused(["--draft is '33'", "1 to 32"], *base, "--draft", "33")
        self.refused(["--mode is 'fast'"], *base, "--mode", "fast")
        self.refused(["needs a draft", "-md"], *base, "--mode", "drift")

    def test_prompts(self):
        self.refused(["-p", "empty"], "run", "-m", "x", "-p", "")
        self.refused(["-p", "byte 2", "UTF-8"], "run", "-m", "x", "-p", b"a\xff")
        self.refused(["-f", "empty"], "run", "-m", "x", "-f", self.path("empty.txt", ""))
        self.refused(["cannot open"], "run", "-m", "x", "-f", self.path("missing.txt"))

    def test_model_files(self):
        self.refused(["-m", "no such file"], "run", "-m", self.path("none.gguf"), "-p", "x")
        self.refused(["-m", "GGUF"], "run", "-m", self.path("text.gguf", "hello, no model"), "-p", "x")
        self.refused(["folder"], "run", "-m", self.folder.name, "-p", "x")

    def test_a_truncated_model(self):
        with open(model(), "rb") as file:
            cut = self.path("cut.gguf", file.read(3_000_000))
        self.refused(["-m", "cut.gguf"], "run", "-m", cut, "-p", "x")

    def test_a_prompt_beyond_the_context(self):
        self.refused(["tokens", "context", "-c"], "run", "-m", model(), "--raw", "-c", "64", "-f", self.path("long.txt", "word " * 500))

    def test_banks(self):
        m = model()
        base = ("run", "-m", m, "-md", m, "-p", "x", "-n", "4", "--bank")
        self.refused(["x.bank"], *base, self.path("no/such/x.bank"))
        self.refused(["x.bank"], *base, self.path("x.bank", "not a bank" * 100))


class Runs(ProgramTest):
    COMMON = ("-p", "The capital of France is", "--raw", "--temp", "0", "-n", "24")

    def test_all_modes_give_the_same_text(self):
        m = model()
        plain = self.worked("run", "-m", m, *self.COMMON)
        self.assertTrue(plain.stdout.strip())
        self.assertIn("24 tokens", plain.stderr)
        for mode in ("static", "drift"):
            done = self.worked("run", "-m", m, "-md", m, "--mode", mode, *self.COMMON)
            self.assertEqual(done.stdout, plain.stdout)
            self.assertIn("acceptance", done.stderr)

    def test_json(self):
        m = model()
        out = json.loads(self.worked("run", "-m", m, "-md", m, "--json", *self.COMMON).stdout)
        self.assertEqual(out["schema"], "drift.run/1")
        self.assertEqual(out["tokens"], 24)
        self.assertEqual(out["ending"], "length")
        self.assertGreater(out["acceptance"], 0.5)  # a model as its own draft
        self.assertGreater(out["bank_entries"], 0)

    def test_stop_strings_and_colours(self):
        m = model()
        whole = self.worked("run", "-m", m, *self.COMMON).stdout
        word = whole.split()[3]
        cut = json.loads(self.worked("run", "-m", m, "--json", "--stop", word, *self.COMMON).stdout)
        self.assertEqual(cut["ending"], "stop")
        self.assertNotIn(word, cut["text"])
        self.assertTrue(whole.startswith(cut["text"]))
        shown = self.worked("run", "-m", m, "-md", m, "--show-draft", "--color", "always", *self.COMMON).stdout
        self.assertEqual(shown.count("thanks to the bank"), 1)
        self.assertIn("\x1b[32m", shown)

    def test_a_bank_is_kept(self):
        m, bank = model(), self.path("x.bank")
        self.worked("run", "-m", m, "-md", m, "--bank", bank, *self.COMMON)
        self.assertEqual(os.listdir(self.folder.name), ["x.bank"])
        with open(bank, "rb") as file:
            before = file.read()
        out = json.loads(self.worked("run", "-m", m, "-md", m, "--bank", bank, "--bank-ro", "--json", *self.COMMON).stdout)
        self.assertGreater(out["bank_entries"], 0)
        with open(bank, "rb") as file:
            self.assertEqual(file.read(), before)
        self.refused(["capacity", "4096"], "run", "-m", m, "-md", m, "--bank", bank, "--capacity", "100", *self.COMMON)

    def test_interruption_keeps_the_bank(self):
        m, bank = model(), self.path("x.bank")
        process = start("run", "-m", m, "-md", m, "--raw", "-p", "Once upon a time", "--bank", bank, "--temp", "0", "-n", "2000")
        self.assertTrue(process.stdout.read(1))
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, errors)
        self.worked("run", "-m", m, "-md", m, "--bank", bank, "--bank-ro", *self.COMMON)

    def test_a_closed_pipe_ends_quietly(self):
        process = start("run", "-m", model(), "--raw", "-p", "Once upon a time", "--temp", "0", "-n", "2000")
        process.stdout.read(1)
        process.stdout.close()
        process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=300), 141)

    def test_chat_from_a_pipe(self):
        with open(self.path("chat.txt", "Say hello.\n\nAnd again.\n"), "rb") as stdin:
            done = self.worked("run", "-m", model(), "--temp", "0", "-n", "8", stdin=stdin)
        self.assertEqual(done.stderr.count("tokens/s"), 2)


if __name__ == "__main__":
    program.main()
