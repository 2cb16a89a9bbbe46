"""program.py - runs the built program for the end-to-end tests.

The program's path is the first argument of each test file. DRIFT_MODELS names the folder with the model files; the built-in pair lies
in the project's models/.
"""

import math
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

SMOLLM = "smollm2-135m-instruct-q4_1.gguf"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILT_IN = os.path.join(ROOT, "models")


def model(name=SMOLLM):
    """The path of a model file; skips the test, aloud, where it is missing."""
    folder = os.environ.get("DRIFT_MODELS")
    path = os.path.join(folder, name) if folder else None
    if path is None or not os.path.exists(path):
        raise unittest.SkipTest(f"no {name} in the folder that DRIFT_MODELS names; fetch it with: drift models get smollm2")
    return path


def target():
    """A target for what needs neither a chat template nor time to interrupt it: the built-in one, else SmolLM2."""
    return pair()[0]


def pair():
    """Target and draft: the built-in pair, or, where it is not there, SmolLM2 as its own draft (then skipped, aloud, without it)."""
    paths = tuple(os.path.join(BUILT_IN, f"drift-mini-{side}.gguf") for side in ("target", "draft"))
    if all(os.path.exists(path) for path in paths):
        return paths
    print(f"SKIPPED: no built-in pair in {BUILT_IN}: {SMOLLM} stands in for it")
    return model(), model()


def drift(*arguments, timeout=600, stdin=subprocess.DEVNULL):
    """Runs the program; returns the completed process with text output."""
    return subprocess.run([os.environ["DRIFT_PROGRAM"], *arguments], stdin=stdin, capture_output=True, timeout=timeout,
                          encoding="utf-8", errors="surrogateescape")


def start(*arguments, stdin=subprocess.DEVNULL):
    """Starts the program with both outputs in pipes; it hears a SIGHUP also when the tests are run by nohup."""
    return subprocess.Popen([os.environ["DRIFT_PROGRAM"], *arguments], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))


def shell(before, after, *arguments, timeout=600):
    """Runs the program as a shell does: `before; exec drift arguments... after`, e.g. with ">&-" after it."""
    return subprocess.run(["sh", "-c", f'{before}\nexec "$0" "$@" {after}', os.environ["DRIFT_PROGRAM"], *arguments],
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, encoding="utf-8", errors="surrogateescape")


def without_reader(*arguments, timeout=600):
    """Runs the program with nobody at the other end of its standard output."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run([os.environ["DRIFT_PROGRAM"], *arguments], stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE,
                              timeout=timeout, encoding="utf-8", errors="surrogateescape")
    finally:
        os.close(writer)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def gguf(fields, tensors, kind=0):
    """The bytes of a small GGUF file. fields: name -> str, int (u32) or float (f32). tensors: name -> (dimensions, floats).
    kind: the type the file claims for the tensors (0: f32)."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def aligned(data):
        return data + b"\0" * (-len(data) % 32)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    for name, value in fields.items():
        code, packed = {str: (8, text), int: (4, lambda v: struct.pack("<I", v)), float: (6, lambda v: struct.pack("<f", v))}[type(value)]
        head += text(name) + struct.pack("<I", code) + packed(value)
    data = b""
    for name, (dimensions, values) in tensors.items():
        head += text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        head += struct.pack("<IQ", kind, len(data))
        data += aligned(struct.pack(f"<{len(values)}{'d' if kind == 28 else 'f'}", *values))
    return aligned(head) + data


def add_chat_template(source, to):
    """Writes the GGUF file `source` to `to` with a chat template (ChatML) in front of its fields. The built-in pair has none."""
    data = read(source)
    version, tensors, fields = struct.unpack_from("<IQQ", data, 4)
    template = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
                "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}")
    key = b"tokenizer.chat_template"
    # A comment fills the field to a multiple of 32 bytes, so that everything behind it stays aligned.
    template += "{#" + " " * (-(8 + len(key) + 4 + 8 + len(template) + 4) % 32) + "#}"
    field = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(template)) + template.encode()
    assert len(field) % 32 == 0
    with open(to, "wb") as file:
        file.write(data[:4] + struct.pack("<IQQ", version, tensors, fields + 1) + field + data[24:])


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="drift-e2e-")


def random_tensors(shapes, spread, seed=1):
    """Normal numbers for each shape, for gguf()."""
    rng = random.Random(seed)
    return {name: (dimensions, [rng.gauss(0, spread) for _ in range(math.prod(dimensions))]) for name, dimensions in shapes.items()}


class ProgramTest(unittest.TestCase):
    """A folder of its own for each test, and checks of how the program refuses."""

    def setUp(self):
        self.folder = temporary_folder()
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
