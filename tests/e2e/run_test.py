"""drift run: streaming, banks, interruption, and every input it must refuse."""

import json
import os
import signal
import struct
import time

import program
from program import ProgramTest, model, target, read, shell, start, without_reader


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
        self.refused(["--lora-draft", "-md"], *base, "--lora-draft", "a.gguf")
        self.refused(["--top-p is '1e-50'"], *base, "--top-p", "1e-50")

    def test_an_empty_value_is_not_none(self):
        for flag in ("-md", "-f", "--system", "--mode", "--bank"):
            self.refused([f"{flag} is empty"], "run", "-m", "x", flag, "")
        self.refused(["-m is empty"], "run", "-m", "")
        self.refused(["--bank is empty"], "run", "-m", "x", "--bank=", "-p", "a")

    def test_prompts(self):
        self.refused(["-p", "empty"], "run", "-m", "x", "-p", "")
        self.refused(["-p", "byte 2", "UTF-8"], "run", "-m", "x", "-p", b"a\xff")
        self.refused(["-f", "empty"], "run", "-m", "x", "-f", self.path("empty.txt", ""))
        self.refused(["cannot open"], "run", "-m", "x", "-f", self.path("missing.txt"))

    def test_an_interruption_ends_the_wait_for_a_pipe(self):
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        process = start("run", "-m", "x", "-f", pipe)
        self.addCleanup(process.kill)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn(b"interrupted", errors)

    def test_model_files(self):
        self.refused(["-m", "no such file"], "run", "-m", self.path("none.gguf"), "-p", "x")
        self.refused(["-m", "GGUF"], "run", "-m", self.path("text.gguf", "hello, no model"), "-p", "x")
        self.refused(["folder"], "run", "-m", self.folder.name, "-p", "x")

    def test_a_recurrent_model(self):
        width, inner, kernel, state, rank, vocab = 32, 64, 4, 16, 2, 32
        fields = {"general.architecture": "mamba", "general.name": "tiny mamba", "mamba.context_length": 512,
                  "mamba.embedding_length": width, "mamba.feed_forward_length": 0, "mamba.attention.head_count": 0,
                  "mamba.block_count": 1, "mamba.ssm.conv_kernel": kernel, "mamba.ssm.inner_size": inner,
                  "mamba.ssm.state_size": state, "mamba.ssm.time_step_rank": rank,
                  "mamba.attention.layer_norm_rms_epsilon": 1e-5, "mamba.vocab_size": vocab, "tokenizer.ggml.model": "none"}
        shapes = {"token_embd.weight": (width, vocab), "output_norm.weight": (width,), "blk.0.attn_norm.weight": (width,),
                  "blk.0.ssm_in.weight": (width, 2 * inner), "blk.0.ssm_conv1d.weight": (kernel, inner),
                  "blk.0.ssm_conv1d.bias": (inner,), "blk.0.ssm_x.weight": (inner, rank + 2 * state),
                  "blk.0.ssm_dt.weight": (rank, inner), "blk.0.ssm_dt.bias": (inner,), "blk.0.ssm_a": (state, inner),
                  "blk.0.ssm_d": (inner,), "blk.0.ssm_out.weight": (inner, width)}
        mamba = self.path("mamba.gguf", program.gguf(fields, program.random_tensors(shapes, 0.1)))
        self.refused(["-m", "recurrent"], "run", "-m", mamba, "-p", "x")

    def test_a_truncated_model(self):
        with open(target(), "rb") as file:
            cut = self.path("cut.gguf", file.read(3_000_000))
        self.refused(["-m", "cut.gguf"], "run", "-m", cut, "-p", "x")

    def test_a_prompt_beyond_the_context(self):
        self.refused(["tokens", "context", "-c"], "run", "-m", target(), "--raw", "-c", "64", "-f", self.path("long.txt", "word " * 500))

    def test_banks(self):
        m = target()
        base = ("run", "-m", m, "-md", m, "-p", "x", "-n", "4", "--bank")
        self.refused(["x.bank"], *base, self.path("no/such/x.bank"))
        self.refused(["x.bank"], *base, self.path("x.bank", "not a bank" * 100))

    def test_what_is_refused_leaves_no_new_bank(self):
        m, bank = target(), self.path("new.bank")
        base = ("run", "-m", m, "-md", m, "--raw", "--bank", bank, "-c", "64")
        self.refused(["tokens", "context"], *base, "-p", "word " * 300)
        self.refused(["renormalise", "centre"], *base, "-p", "a", "--renormalise", "on")
        self.assertEqual(os.listdir(self.folder.name), [])


class Runs(ProgramTest):
    COMMON = ("-p", "The capital of France is", "--raw", "--temp", "0", "-n", "24")

    def test_all_modes_give_the_same_text(self):
        m = target()
        plain = self.worked("run", "-m", m, *self.COMMON)
        self.assertTrue(plain.stdout.strip())
        self.assertIn("24 tokens", plain.stderr)
        for mode in ("static", "drift", "draft+suffix", "drift+suffix"):
            done = self.worked("run", "-m", m, "-md", m, "--mode", mode, *self.COMMON)
            self.assertEqual(done.stdout, plain.stdout)
            self.assertIn("acceptance", done.stderr)
        for mode in ("lookup", "suffix"):
            done = self.worked("run", "-m", m, "--mode", mode, *self.COMMON)
            self.assertEqual(done.stdout, plain.stdout)
            self.assertIn("copied", done.stderr)

    def test_json(self):
        m = target()
        out = json.loads(self.worked("run", "-m", m, "-md", m, "--json", *self.COMMON).stdout)
        self.assertEqual(out["schema"], "drift.run/1")
        self.assertEqual(out["tokens"], 24)
        self.assertEqual(out["ending"], "length")
        self.assertGreater(out["acceptance"], 0.5)  # a model as its own draft
        self.assertGreater(out["bank_entries"], 0)

    def test_stop_strings_and_colours(self):
        m = target()
        whole = self.worked("run", "-m", m, *self.COMMON).stdout
        word = whole.split()[3]
        passed = json.loads(self.worked("run", "-m", m, "--json", "--stop", f"[{word}]", *self.COMMON).stdout)
        self.assertIn(word, passed["text"], "brackets are part of the text, no list")
        cut = json.loads(self.worked("run", "-m", m, "--json", "--stop", word, *self.COMMON).stdout)
        self.assertEqual(cut["ending"], "stop")
        self.assertNotIn(word, cut["text"])
        self.assertTrue(whole.startswith(cut["text"]))
        shown = self.worked("run", "-m", m, "-md", m, "--show-draft", "--color", "always", *self.COMMON).stdout
        self.assertEqual(shown.count("thanks to the bank"), 1)
        self.assertIn("\x1b[32m", shown)

    def test_a_bank_is_kept(self):
        m, bank = target(), self.path("x.bank")
        self.worked("run", "-m", m, "-md", m, "--bank", bank, *self.COMMON)
        self.assertEqual(os.listdir(self.folder.name), ["x.bank"])
        with open(bank, "rb") as file:
            before = file.read()
        out = json.loads(self.worked("run", "-m", m, "-md", m, "--bank", bank, "--bank-ro", "--json", *self.COMMON).stdout)
        self.assertGreater(out["bank_entries"], 0)
        with open(bank, "rb") as file:
            self.assertEqual(file.read(), before)
        self.refused(["capacity", "4096"], "run", "-m", m, "-md", m, "--bank", bank, "--capacity", "100", *self.COMMON)

    def test_adapters_change_the_model_they_are_given_to(self):
        m, bank = model(), self.path("adapted.bank")
        shapes = {}
        for layer in range(10, 20):
            shapes[f"blk.{layer}.attn_output.weight.lora_a"] = (576, 4)
            shapes[f"blk.{layer}.attn_output.weight.lora_b"] = (4, 576)
        fields = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora", "adapter.lora.alpha": 4.0}
        adapter = self.path("a.gguf", program.gguf(fields, program.random_tensors(shapes, 0.3)))

        def run(*more):
            return json.loads(self.worked("run", "-m", m, "-md", m, "--json", *self.COMMON, *more).stdout)

        for kind in (26, 28):  # i32, f64: llama.cpp would die of them
            bad = self.path("bad.gguf", program.gguf(fields, program.random_tensors(shapes, 0.3), kind=kind))
            self.refused(["bad.gguf", "blk.10.attn_output.weight.lora_a"], "run", "-m", m, "--lora", bad, "-p", "x")
        plain = run()
        self.assertEqual(plain["acceptance"], 1.0, "a model is its own best draft")
        self.assertNotEqual(run("--lora", adapter)["text"], plain["text"])
        self.assertEqual(run("--lora", adapter + "=0")["text"], plain["text"], "scale 0 switches it off")
        drafted = run("--lora-draft", adapter, "--bank", bank)
        self.assertEqual(drafted["text"], plain["text"], "the draft never decides")
        self.assertLess(drafted["acceptance"], 1.0)
        self.refused(["another pair"], "run", "-m", m, "-md", m, "--bank", bank, *self.COMMON)

    def test_interruption_keeps_the_bank(self):
        m = model()
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            bank = self.path(f"{sent}.bank")
            process = start("run", "-m", m, "-md", m, "--raw", "-p", "Once upon a time", "--bank", bank, "--temp", "0", "-n", "2000")
            self.assertTrue(process.stdout.read(1))
            time.sleep(1)
            process.send_signal(sent)
            _, errors = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 130, errors)
            out = json.loads(self.worked("bank", "show", "--json", bank).stdout)
            self.assertGreater(out["entries"], 0)

    def test_lost_output_is_said_and_the_bank_kept(self):
        m, bank = target(), self.path("x.bank")
        arguments = ("run", "-m", m, "-md", m, "--bank", bank, *self.COMMON)
        for after in (">&-", "<&- >&-", ">/dev/full"):
            done = shell("", after, *arguments)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("cannot write the output", done.stderr)
            self.worked("bank", "verify", bank)
        self.assertEqual(shell("", "2>&-", *arguments).returncode, 0)
        self.assertEqual(shell("", "2>/dev/full", *arguments).returncode, 0)
        done = shell("", ">/dev/full", *arguments, "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        done = without_reader(*arguments, "--json")
        self.assertEqual(done.returncode, 141, done.stderr)
        self.worked("bank", "verify", bank)

    def test_a_model_of_any_name_can_have_a_bank(self):
        content = bytearray(read(target()))
        at = content.find(b"general.name" + struct.pack("<I", 8)) + len(b"general.name") + 4
        length, = struct.unpack_from("<Q", content, at)
        self.assertGreater(length, 4)
        content[at + 8:at + 12] = b"\x1b[2J"
        m, bank = self.path("m.gguf", bytes(content)), self.path("x.bank")
        self.worked("run", "-m", m, "-md", m, "--bank", bank, *self.COMMON)
        shown = self.worked("bank", "show", bank).stdout
        self.assertIn("\\x1b[2J", shown)
        self.assertNotIn("\x1b", shown)
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

    def chat(self, content, *arguments):
        with open(self.path("chat.txt", content), "rb") as stdin:
            return self.worked("run", "-m", model(), "--temp", "0", *arguments, stdin=stdin)

    def test_a_line_that_cannot_be_sent_is_forgotten(self):
        done = self.chat(b"word " * 2000 + b"\nnul \0 byte\nbad \xff byte\n" + b"y" * (17 << 20) + b"\nSay hello.\n", "-n", "8", "-c", "256")
        self.assertEqual(done.stderr.count("the line was not sent"), 4, done.stderr)
        self.assertEqual(done.stderr.count("tokens/s"), 1, done.stderr)
        self.assertLess(len(done.stderr), 2000)

    def test_a_full_conversation_is_said(self):
        done = self.chat("Say hello.\n" * 6, "-n", "16", "-c", "64")
        self.assertGreater(done.stderr.count("tokens/s"), 0, done.stderr)
        self.assertIn("the conversation fills the context of 64 tokens", done.stderr)

    def test_a_line_without_end(self):
        with open("/dev/zero", "rb") as stdin:
            done = program.drift("run", "-m", model(), stdin=stdin)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("no text", done.stderr)


if __name__ == "__main__":
    program.main()
