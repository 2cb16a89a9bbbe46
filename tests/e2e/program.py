"""program.py - runs the built program for the end-to-end tests.

The program's path is the first argument of each test file. DRIFT_MODELS names the folder with the model files.
"""

import os
import subprocess
import sys
import tempfile
import unittest

SMOLLM = "smollm2-135m-instruct-q4_1.gguf"


def model(name=SMOLLM):
    """The path of a model file; skips the test, aloud, where it is missing."""
    folder = os.environ.get("DRIFT_MODELS")
    path = os.path.join(folder, name) if folder else None
    if path is None or not os.path.exists(path):
        raise unittest.SkipTest(f"no {name} in the folder that DRIFT_MODELS names; fetch it with: drift models get smollm2")
    return path


def drift(*arguments, timeout=600, stdin=subprocess.DEVNULL):
    """Runs the program; returns the completed process with text output."""
    return subprocess.run([os.environ["DRIFT_PROGRAM"], *arguments], stdin=stdin, capture_output=True, timeout=timeout,
                          encoding="utf-8", errors="surrogateescape")


def start(*arguments):
    """Starts the program with both outputs in pipes."""
    return subprocess.Popen([os.environ["DRIFT_PROGRAM"], *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class ProgramTest(unittest.TestCase):
    """A folder of its own for each test, and checks of how the program refuses."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="drift-e2e-")
        self.addCleanup(self.folder.cleanup)

    def path(self, name, content=None):
        path = os.path.join(self.folder.name, name)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
        return path

    def refused(self, words, *arguments, code=2):
        """The program ends with `code` and says all the words on stderr."""
        done = drift(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        return done

    def worked(self, *arguments, **options):
        done = drift(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done


def main():
    os.environ["DRIFT_PROGRAM"] = os.path.abspath(sys.argv.pop(1))
    outcome = unittest.main(module="__main__", exit=False, verbosity=2).result
    for _, reason in outcome.skipped:
        print("SKIPPED:", reason)
    sys.exit(0 if outcome.wasSuccessful() else 1)
