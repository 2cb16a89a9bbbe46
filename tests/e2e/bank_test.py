"""drift bank, and what holds for every command: output files, lost output, closed descriptors. Needs no model."""

import json
import os
import signal
import subprocess
import threading
import time

import program
from program import ProgramTest, read, shell, start, without_reader

EMPTY = {
    "format": "drift bank export", "version": 1,
    "fingerprint": {"target_hash": "aa11", "draft_hash": "bb22", "vocab": 100, "hidden_width": 4},
    "target_name": "t", "draft_name": "d",
    "config": {"capacity": 8, "key_dim": 4, "support": 3, "vocab": 100, "key_type": "f32", "int8_scan": False, "standardise": False,
               "tau": 0.5, "eta": 0.25, "rate": "fixed"},
    "size": 0, "use_counter": 0, "extras": 0,
}


class BankTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.bank = self.path("x.bank")
        self.worked("bank", "import", self.bank, self.path("empty.export", json.dumps(EMPTY) + "\n"))
        self.export = self.worked("bank", "export", self.bank).stdout.encode()
        self.content = read(self.bank)

    def names(self):
        return set(os.listdir(self.folder.name))

    def sound(self):
        self.assertEqual(read(self.bank), self.content)


class Exports(BankTest):
    def test_a_bank_is_not_overwritten_by_its_export(self):
        os.symlink("x.bank", self.path("link"))
        os.link(self.bank, self.path("hard"))
        for name in ("x.bank", "link", "hard"):
            self.refused(["same file", name], "bank", "export", self.bank, "-o", self.path(name))
        self.sound()

    def test_into_files(self):
        out = self.path("out", "old")
        self.path("out.part", "somebody's")
        before = self.names()
        self.worked("bank", "export", self.bank, "-o", out)
        self.assertEqual(read(out), self.export)
        self.assertEqual(read(self.path("out.part")), b"somebody's")
        os.symlink("out", self.path("link"))
        self.path("out", "old")
        self.worked("bank", "export", self.bank, "-o", self.path("link"))
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertEqual(read(out), self.export)
        self.assertEqual(self.names(), before | {"link"})

    def test_into_devices_and_pipes(self):
        for device in ("null", "full"):  # by links, so that a mistake here replaces no device
            os.symlink(f"/dev/{device}", self.path(device))
        self.worked("bank", "export", self.bank, "-o", self.path("null"))
        self.assertTrue(os.path.islink(self.path("null")))
        self.refused(["full", "No space left"], "bank", "export", self.bank, "-o", self.path("full"), code=1)
        self.assertEqual(self.worked("bank", "export", self.bank, "-o", "/dev/stdout").stdout.encode(), self.export)
        pipe, got = self.path("pipe"), []
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda: got.append(read(pipe)))
        reader.start()
        self.worked("bank", "export", self.bank, "-o", pipe)
        reader.join()
        self.assertEqual(got, [self.export])

    def test_refusals(self):
        self.refused(["out.export", "does not exist"], "bank", "export", self.bank, "-o", self.path("no/out.export"))
        self.refused(["folder"], "bank", "export", self.bank, "-o", self.folder.name)
        self.refused(["-o is empty"], "bank", "export", self.bank, "-o", "")

    def test_a_file_that_may_not_grow(self):
        before = self.names()
        done = shell("ulimit -f 0", "", "bank", "export", self.bank, "-o", self.path("out"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("File too large", done.stderr)
        self.assertEqual(self.names(), before)


class Imports(BankTest):
    def test_refusals(self):
        self.refused(["is a folder"], "bank", "import", self.bank, self.folder.name)
        self.refused(["cannot open"], "bank", "import", self.bank, self.path("none"))
        self.refused(["cut"], "bank", "import", self.path("new.bank"), "-")
        self.sound()

    def test_interrupted(self):
        process = start("bank", "import", self.path("new.bank"), "-", stdin=subprocess.PIPE)
        process.stdin.write(self.export[:50])
        process.stdin.flush()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)
        self.assertIn(b"interrupted", process.stderr.read())
        process.stdin.close()
        process.stdout.close()
        process.stderr.close()
        self.assertFalse(os.path.exists(self.path("new.bank")))


class EveryCommand(BankTest):
    def commands(self):
        return (("--version",), ("--help",), ("run", "--help"), ("models", "list", "--dir", self.folder.name), ("bank", "show", self.bank),
                ("bank", "show", "--json", self.bank), ("bank", "verify", self.bank), ("bank", "export", self.bank), ("bank", "reset", self.bank))

    def test_lost_output_is_said(self):
        for command in self.commands():
            for after, why in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
                done = shell("", after, *command)
                self.assertEqual(done.returncode, 1, (command, done.stderr))
                self.assertIn(f"cannot write the output: {why}", done.stderr)

    def test_a_reader_that_has_gone_is_not_told_of(self):
        for command in self.commands():
            done = without_reader(*command)
            self.assertEqual(done.returncode, 141, (command, done.stderr))
            self.assertEqual(done.stderr, "")

    def test_closed_descriptors_are_not_given_to_the_bank(self):
        for after in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
            shell("", after, "bank", "show", self.bank)
            self.sound()
            self.worked("bank", "verify", self.bank)
        self.assertEqual(shell("", "<&- 2>&-", "bank", "verify", self.bank).returncode, 0)

    def test_unknown_commands(self):
        self.refused(["unknown command 'frobnicate'", "compare"], "frobnicate")
        self.refused(["unknown command 'burn'", "export"], "bank", "burn", self.bank)
        steering = self.refused(["unknown command"], "\x1b[2J")
        self.assertNotIn("\x1b", steering.stderr)


if __name__ == "__main__":
    program.main()
