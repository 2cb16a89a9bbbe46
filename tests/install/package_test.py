"""The packages: made by CPack, unpacked, and what is in them runs and answers.

package_test.py BUILD_FOLDER WORK_FOLDER. Without dpkg only the tarball is tried.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

build, work = (os.path.abspath(folder) for folder in sys.argv[1:3])


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def answers(prefix):
    """The unpacked program says its version, serves the models that came with it, and has its licences beside it."""
    drift, models = os.path.join(prefix, "bin", "drift"), os.path.join(prefix, "share", "drift", "models")
    print("  ", run(drift, "--version").splitlines()[0])
    for part in ("share/doc/drift/LICENSE", "share/doc/drift/THIRD_PARTY.md", "share/doc/drift/LICENSE.llama", "share/doc/drift/docs/server.md",
                 "lib/systemd/system/drift.service", "include/drift/drift.h", "lib/libdrift.a", "lib/cmake/drift/drift-config.cmake"):
        if not os.path.exists(os.path.join(prefix, part)):
            sys.exit(f"FAILED: there is no {part}")
    # The unit's program is the package's.
    with open(os.path.join(prefix, "lib/systemd/system/drift.service"), encoding="utf-8") as unit:
        assert "ExecStart=/usr/bin/drift serve" in unit.read()
    pair = [os.path.join(models, f"drift-mini-{side}.gguf") for side in ("target", "draft")]
    server = subprocess.Popen([drift, "serve", "-m", pair[0], "-md", pair[1], "-t", "1", "-c", "256", "--port", "0", "--log-format", "json"],
                              stderr=subprocess.PIPE, text=True)
    try:
        url = None
        for line in server.stderr:
            event = json.loads(line)
            url = event.get("url", url)
            if event["event"] == "ready":
                break
        else:
            sys.exit("FAILED: the server did not become ready")
        body = json.dumps({"prompt": "The court held", "max_tokens": 8, "temperature": 0}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body), timeout=60) as answer:
            text = json.load(answer)["choices"][0]["text"]
        print("   answered:", repr(text))
        assert text
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        if server.poll() is None:
            server.kill()


shutil.rmtree(work, ignore_errors=True)
os.makedirs(work)
debian = shutil.which("dpkg-shlibdeps") is not None
run("cpack", "--config", os.path.join(build, "CPackConfig.cmake"), "-B", work, "-G", "DEB;TGZ" if debian else "TGZ", cwd=work)
files = sorted(name for name in os.listdir(work) if name.endswith((".deb", ".tar.gz")))
for name in files:
    print(name, f"{os.path.getsize(os.path.join(work, name)) / 1e6:.1f} MB")
tarball = next(name for name in files if name.endswith(".tar.gz"))
run("tar", "-xzf", tarball, cwd=work)
answers(os.path.join(work, tarball[: -len(".tar.gz")]))
if debian:
    package = os.path.join(work, next(name for name in files if name.endswith(".deb")))
    run("dpkg", "-x", package, os.path.join(work, "root"))
    answers(os.path.join(work, "root", "usr"))
    depends = run("dpkg-deb", "-f", package, "Depends")
    for library in ("libc6", "libsqlite3-0", "libssl3", "libfmt9", "libhwy1"):
        assert re.search(rf"\b{library}\b", depends), (library, depends)
    print("   depends:", depends.strip())
else:
    print("SKIPPED: the .deb, for this system has no dpkg-shlibdeps")
