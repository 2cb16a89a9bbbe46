#!/usr/bin/env python3
"""check_includes.py - the rules of the tree that need no compiler.

1. Who may include whom (docs/architecture.md): a file under drift/<layer> includes only the layers in ALLOWED.
2. Only engines/llama (and the places named below) includes llama.cpp's headers, and only engines/torch and train LibTorch's.
3. No tracked file holds a word that belongs to one machine only: absolute working folders, package-registry hosts.

    check_includes.py [FILE...]    checks the files git tracks (or the given ones); exit 1 and one line per finding
    check_includes.py --self-test  shows that each rule catches a violation
"""

import os
import re
import subprocess
import sys
import tempfile

# layer -> the layers whose headers it may include, besides its own.
ALLOWED = {
    "base": set(),
    "simd": {"base"},
    "spec": {"base", "simd"},
    "engine": {"base"},
    "sqlite": {"base"},
    "trace": {"base", "simd", "sqlite"},
    "bank": {"base", "simd", "sqlite"},
    "recal": {"base", "simd", "spec", "bank"},
    "propose": {"base", "simd", "spec"},
    "control": {"base", "simd", "spec", "engine", "bank", "recal", "trace"},
    "decode": {"base", "simd", "spec", "engine", "bank", "recal", "propose", "trace", "control"},
    # The C API (drift/drift.h, drift/capi*.cpp) lies in drift/ itself.
    "": {"base", "simd", "spec", "bank", "recal"},
    # Test helpers may see everything below them; nothing in the product may see them.
    "testing": {"base", "simd", "spec", "engine", "bank", "recal", "propose", "trace", "control", "decode", ""},
}
# A unit test may use what its layer uses, and the test helpers.
TEST_EXTRA = {"testing", "engine"}
# engines/<name>/ may include these layers only.
ENGINE_LAYERS = {"base", "engine", "trace"}
# server/ runs on any engine: it knows libdrift, text and nothing that knows a model.
SERVER_ROOTS = ("drift", "text", "server")
# The product may not include these roots at all; composition roots may include anything.
ROOTS = ("engines", "cli", "server", "lab", "bench", "train")
LLAMA_HEADER = re.compile(r"^(llama(-[a-z-]+)?|ggml(-[a-z0-9-]+)?|gguf)\.h$")
LLAMA_PLACES = ("engines/llama/", "tests/contract/llama_", "tests/cpu_kernels_test.cpp")
# engines/torch reads and writes GGUF files with ggml, and nothing else of llama.cpp.
GGUF_HEADER = re.compile(r"^(ggml|gguf)\.h$")
GGUF_PLACES = ("engines/torch/gguf_",)
TORCH_HEADER = re.compile(r"^(torch|ATen|c10)/")
TORCH_PLACES = ("engines/torch/", "train/", "tests/contract/torch_")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]')
SOURCES = (".h", ".hpp", ".c", ".cpp", ".cc")


def _join(*parts):
    return "".join(parts)


# Written in pieces, so that this file does not find itself.
BANNED = [
    (re.compile(_join(r"(?<![\w.$}])/", r"work/")), "a machine path"),
    (re.compile(_join(r"(?<![\w.$}])/", r"root/")), "a machine path"),
    (re.compile(_join(r"(?<![\w.$}])/", r"tmp/")), "a machine path"),
    (re.compile(_join(r"(?<![\w.$}])/", r"home/\w")), "a machine path"),
    (re.compile(_join(r"pypi\.", r"org"), re.I), "a package-registry host"),
    (re.compile(_join(r"python", r"hosted"), re.I), "a package-registry host"),
    (re.compile(_join(r"registry\.", r"npmjs"), re.I), "a package-registry host"),
    (re.compile(_join(r"deb\.debian", r"\.org"), re.I), "a package-registry host"),
    (re.compile(_join(r"hugging", r"face\.co"), re.I), "a package-registry host"),
    (re.compile(_join(r"crates\.", r"io"), re.I), "a package-registry host"),
]


def layer_of(path):
    """The layer a path under drift/ belongs to; '' for drift/ itself; None elsewhere."""
    parts = path.split("/")
    if parts[0] != "drift":
        return None
    return parts[1] if len(parts) > 2 else ""


def include_findings(path, text):
    if path.startswith("cmake/llama-common/"):  # llama.cpp's own sources, compiled where they lie
        return
    layer = layer_of(path)
    is_test = re.search(r"_test\.(c|cpp)$", path) is not None
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        where = f"{path}:{number}"
        reads_gguf = GGUF_HEADER.match(target) and path.startswith(GGUF_PLACES)
        if LLAMA_HEADER.match(target) and not path.startswith(LLAMA_PLACES) and not reads_gguf:
            yield f"{where}: includes {target}: only engines/llama knows llama.cpp"
        if TORCH_HEADER.match(target) and not path.startswith(TORCH_PLACES):
            yield f"{where}: includes {target}: only engines/torch and train know LibTorch"
        if layer is not None and target.split("/")[0] in ROOTS and "/" in target:
            yield f"{where}: includes {target}: libdrift knows no engine, program or server"
        if path.startswith("server/") and not is_test and not path.startswith("server/testing/"):
            root = target.split("/")[0]
            if root in ROOTS and root not in SERVER_ROOTS:
                yield f"{where}: includes {target}: the server knows libdrift and text only"
        other = layer_of(target)
        if other is None:
            if quote == '"' and not ("/" in target or path.startswith(("tests/install/", "examples/"))):
                yield f'{where}: includes "{target}": the include path is the repository root'
            continue
        if layer is not None:
            if layer not in ALLOWED:
                yield f"{where}: the layer drift/{layer} is not in tools/check_includes.py"
                return
            allowed = ALLOWED[layer] | {layer} | (TEST_EXTRA if is_test else set())
            if other not in allowed:
                yield f"{where}: drift/{layer} may not include drift/{other or '(C API)'}: {target}"
        elif path.startswith("engines/") and not is_test and other not in ENGINE_LAYERS:
            yield f"{where}: an engine may include base, engine and trace only: {target}"


def banned_findings(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in BANNED:
            if pattern.search(line):
                yield f"{path}:{number}: {what}: {line.strip()[:100]}"


def findings(path, text):
    if path.endswith(SOURCES):
        yield from include_findings(path, text)
    yield from banned_findings(path, text)


def check(root, paths):
    found = []
    for path in paths:
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                text = file.read()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # binary, deleted in the working tree, or a link to a folder
        found.extend(findings(path, text))
    return found


SELF_TEST = [
    # (path, text, part of the expected finding, or None where nothing may be found)
    ("drift/base/a.hpp", '#include "drift/bank/bank.hpp"\n', "drift/base may not include drift/bank"),
    ("drift/bank/a.cpp", '#include "drift/recal/recal.hpp"\n', "drift/bank may not include drift/recal"),
    ("drift/trace/a.cpp", '#include "drift/sqlite/database.hpp"\n', None),
    ("drift/decode/a.cpp", '#include "drift/testing/toy.hpp"\n', "drift/decode may not include drift/testing"),
    ("drift/decode/a_test.cpp", '#include "drift/testing/toy.hpp"\n', None),
    ("drift/recal/a.cpp", '#include "drift/spec/softmax.hpp"\n', None),
    ("drift/capi.cpp", '#include "drift/decode/stepper.hpp"\n', "may not include drift/decode"),
    ("drift/capi.cpp", '#include "drift/recal/recal.hpp"\n', None),
    ("drift/novel/a.cpp", '#include "drift/base/rng.hpp"\n', "is not in tools/check_includes.py"),
    ("drift/decode/a.cpp", "#include <llama.h>\n", "only engines/llama"),
    ("cli/run.cpp", '#include "ggml-cpu.h"\n', "only engines/llama"),
    ("engines/llama/engine.cpp", "#include <llama.h>\n", None),
    ("engines/llama/engine.cpp", '#include "drift/bank/bank.hpp"\n', "an engine may include"),
    ("engines/torch/gguf_read.cpp", "#include <gguf.h>\n", None),
    ("engines/torch/gguf_read.cpp", "#include <llama.h>\n", "only engines/llama"),
    ("engines/torch/model.cpp", "#include <ggml.h>\n", "only engines/llama"),
    ("engines/torch/model.cpp", "#include <torch/torch.h>\n", None),
    ("engines/llama/engine.cpp", "#include <torch/torch.h>\n", "know LibTorch"),
    ("cli/run.cpp", "#include <ATen/Parallel.h>\n", "know LibTorch"),
    ("drift/decode/a.cpp", '#include "cli/options.hpp"\n', "libdrift knows no engine"),
    ("drift/bank/a.cpp", '#include "bank.hpp"\n', "the include path is the repository root"),
    ("cli/run.cpp", '#include "drift/decode/stepper.hpp"\n', None),
    ("server/http/a.cpp", '#include "engines/llama/text.hpp"\n', "the server knows libdrift and text only"),
    ("server/http/a.cpp", '#include "server/api/json.hpp"\n', None),
    ("docs/a.md", _join("see /", "work/shared\n"), "a machine path"),
    ("docs/a.md", _join("see docs/", "work/shared and network/", "root/\n"), None),
    ("tools/a.sh", _join("curl https://pypi.", "org/simple\n"), "a package-registry host"),
]


def self_test():
    failures = 0
    with tempfile.TemporaryDirectory() as root:
        for path, text, expected in SELF_TEST:
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
            found = check(root, [path])
            ok = not found if expected is None else any(expected in line for line in found)
            if not ok:
                failures += 1
                print(f"self-test: {path}: {text.strip()!r}: expected {expected!r}, found {found}")
    print(f"check_includes: self-test: {len(SELF_TEST) - failures} of {len(SELF_TEST)} cases as expected")
    return failures


def main(arguments):
    if arguments == ["--self-test"]:
        return 1 if self_test() else 0
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if arguments:
        paths = arguments
    else:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
        paths = [name for name in listing.decode().split("\0") if name]
    found = check(root, paths)
    for line in found:
        print(line)
    print(f"check_includes: {len(paths)} files, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
