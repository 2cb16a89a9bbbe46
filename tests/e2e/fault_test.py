"""drift serve when things go wrong around it: kills, full disks, broken banks, clients that send nonsense, nothing, or go away.

After each the server answers as before, or has ended with a clear word. All on the built-in pair.
"""

import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import program
from program import ProgramTest
from serve_test import Server, complete

ASK = complete("The court held that", max_tokens=8)


class Faults(ProgramTest):
    def start(self, *arguments, pair=None, **options):
        target, draft = pair or program.pair()
        server = Server("-m", target, "-md", draft, "-t", "1", "-c", "512", *arguments, **options)
        self.addCleanup(server.close)
        server.wait_for("ready")
        return server

    def answers(self, server, text=None, within=30):
        """It answers, soon, and as it did (where `text` is given)."""
        from_then = time.monotonic()
        got = server.json("POST", "/v1/completions", ASK)["choices"][0]["text"]
        self.assertLess(time.monotonic() - from_then, within)
        if text is not None:
            self.assertEqual(got, text)
        return got

    def free(self, server, within=20):
        """All slots are free and nobody waits."""
        deadline = time.monotonic() + within
        while True:
            state = server.json("GET", "/v1/drift/state")
            if state["waiting"] == 0 and all(slot["phase"] == "idle" for slot in state["slots"]):
                return
            self.assertLess(time.monotonic(), deadline, state)
            time.sleep(0.05)

    def wait_for_bank(self, server, what, within=30):
        deadline = time.monotonic() + within
        while True:
            bank = server.json("GET", "/v1/drift/banks")["data"][0]
            if what(bank):
                return bank
            self.assertLess(time.monotonic(), deadline, bank)
            time.sleep(0.05)

    def refused(self, server, body, status=400, path="/v1/completions", headers=None, within=20):
        """A raw body is refused with a JSON error; returns its message."""
        from_then = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=within)
        try:
            connection.request("POST", path, body=body, headers={"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        self.assertEqual(answer.status, status, text[:500])
        self.assertLess(time.monotonic() - from_then, within)
        return json.loads(text)["error"]["message"]

    # ---- banks and disks ----

    def test_kill_9_during_snapshots(self):
        bank = self.path("x.bank")
        hit = 0
        for round_ in range(4):
            server = self.start("--bank", bank, "--bank-save-interval", "1")
            self.answers(server)
            stop = threading.Event()
            load = threading.Thread(target=self.keep_busy, args=(server, stop))
            load.start()
            # The new content is written beside the bank and renamed over it: killed while that file is there.
            deadline = time.monotonic() + 20
            while not os.path.exists(bank + ".drift-tmp") and time.monotonic() < deadline:
                pass
            time.sleep(0.002 * round_)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            hit += os.path.exists(bank + ".drift-tmp")
            stop.set()
            load.join()
            if os.path.getsize(bank) > 0:
                self.worked("bank", "verify", bank)
        self.assertGreater(hit, 0, "no kill met a snapshot under way")
        again = self.start("--bank", bank)
        self.answers(again)
        self.assertEqual(again.end(), 0)
        self.worked("bank", "verify", bank)
        self.assertEqual(os.listdir(self.folder.name), ["x.bank"])

    @staticmethod
    def keep_busy(server, stop):
        n = 0
        while not stop.is_set():
            n += 1
            try:
                server.request("POST", "/v1/completions", complete(f"Case {n}", max_tokens=32))
            except (OSError, http.client.HTTPException):
                return  # it was killed

    def full_disk(self, folder, make_room, **options):
        server = self.start("--bank", os.path.join(folder, "x.bank"), "--bank-save-interval", "1", **options)
        text = self.answers(server)
        server.json("POST", "/v1/completions", complete("Much to learn", max_tokens=200, ignore_eos=True, temperature=1))
        bank = self.wait_for_bank(server, lambda b: b["save_failures"] > 0)
        self.assertTrue(bank["last_save_error"])
        server.wait_for("a bank is not saved")
        self.answers(server)
        make_room(server)
        server.json("POST", "/v1/completions", complete("More to learn", max_tokens=100, ignore_eos=True, temperature=1))
        self.wait_for_bank(server, lambda b: b["saves"] > bank["saves"])
        self.assertEqual(server.end(), 0)
        self.worked("bank", "verify", os.path.join(folder, "x.bank"))

    def test_files_that_may_not_grow(self):
        limit = (24 << 10, resource.RLIM_INFINITY)
        self.full_disk(self.folder.name,
                       lambda server: resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2),
                       preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))

    def test_a_full_disk(self):
        folder = self.path("small")
        os.mkdir(folder)
        mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "drift-test", folder]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            self.skipTest("only root may mount a small disk, and not everywhere")
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)
        self.full_disk(folder, lambda server: subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True))

    def test_broken_banks(self):
        target, draft = program.pair()
        good = self.path("good.bank")
        self.worked("run", "-m", target, "-md", draft, "-t", "1", "-p", "Hello", "-n", "48", "--bank", good)
        content = program.read(good)
        os.mkdir(self.path("banks"))
        broken = {"cut": content[: len(content) // 2], "flipped": content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
                  "nonsense": b"not a bank" * 1000, "zeros": b"\0" * 8192, "folder": None}
        for name, bytes_ in broken.items():
            if bytes_ is None:
                os.mkdir(self.path(f"banks/{name}.bank"))
            else:
                self.path(f"banks/{name}.bank", bytes_)
        server = self.start("--bank-dir", self.path("banks"))
        for name, bytes_ in broken.items():
            status, text, _ = server.request("POST", "/v1/completions", dict(ASK, drift={"bank": name}))
            if name in ("cut", "flipped"):  # it was a bank: its tenant is served, and told
                self.assertEqual(status, 200, (name, text))
                bank = next(b for b in server.json("GET", "/v1/drift/banks")["data"] if b["name"] == name)
                self.assertIn(f"{name}.bank", bank["memory_only"])
            else:
                self.assertEqual(status, 400, (name, text))
                self.assertIn(f"{name}.bank", json.loads(text)["error"]["message"])
            self.answers(server)
        self.assertEqual(server.end(), 0)
        for name, bytes_ in broken.items():
            if bytes_ is not None:
                self.assertEqual(program.read(self.path(f"banks/{name}.bank")), bytes_, "what cannot be read is left as it is")

    def test_models_that_are_deleted_while_they_serve(self):
        target, draft = (shutil.copy(path, self.folder.name) for path in program.pair())
        server = self.start(pair=(target, draft))
        text = self.answers(server)
        os.remove(target)
        os.remove(draft)
        server.json("POST", "/v1/completions", complete("Long", max_tokens=200, ignore_eos=True))
        self.answers(server)
        self.assertEqual(server.end(), 0)

    def test_a_short_soak(self):
        """The long one is bench/soak.py for 20 minutes: only then are caches full and memory judged."""
        target, draft = program.pair()
        soak = os.path.join(program.ROOT, "bench", "soak.py")
        done = subprocess.run([sys.executable, soak, "--drift", os.environ["DRIFT_PROGRAM"], "-m", target, "-md", draft, "--minutes", "0.15"],
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertGreater(json.loads(done.stdout.splitlines()[-1])["statuses"]["200"], 10)

    # ---- clients ----

    def test_nonsense_in_bodies(self):
        server = self.start()
        text = self.answers(server)
        limit = 8 << 20
        word = b'{"prompt": "' + b"word " * ((limit - 100) // 5) + b'"}'
        self.assertIn("context", self.refused(server, word))
        self.assertIn("larger than", self.refused(server, word + b" " * 1000, status=413))
        self.refused(server, b'{"prompt": [' + b"1," * (limit // 2 - 50) + b"1]}")
        self.refused(server, b"{" + b",".join(b'"%d": 0' % i for i in range(400_000)) + b"}")
        for nested in (b"[" * 4_000_000, b'{"a":' * 1_000_000, b'{"prompt": "x", "other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
                       b'{"messages": ' + b'[{"content":' * 50_000 + b"}]" * 50_000 + b"}"):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
                self.refused(server, nested, path=path)
        for text_ in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\\ud800", b"\\udc00x", b"\x01"):
            self.refused(server, b'{"prompt": "' + text_ + b'"}')
            self.refused(server, b'{"prompt": "x", "' + text_ + b'": 1}')
        for body in (b"", b"\0", b"null", b"[]", b"1e999", b'{"prompt": "x", "temperature": 1e999}', b'{"prompt": "x"}{"prompt": "y"}',
                     b'{"prompt": "x"', b"{'prompt': 'x'}", b"\xef\xbb\xbf{", b'{"prompt": "x", "seed": 1' + b"0" * 1_000_000 + b"}"):
            self.refused(server, body)
        self.answers(server, text)

    def test_nonsense_on_the_wire(self):
        server = self.start()
        text = self.answers(server)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        for raw in (b"\0" * 10_000, b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                    b"GET /%ff%00%c0 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
                    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
                    head + b"Content-Length: -5\r\n\r\n", head + b"Content-Length: 99999999999999999999\r\n\r\n{}",
                    head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}}}}}", head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                    head + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                    head + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00", head + b"Expect: 100-continue\r\n\r\n",
                    head + b"Authorization: Bearer \xff\xff\r\nX-Request-Id: \x01\x02\r\nContent-Length: 2\r\n\r\n{}",
                    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nRange: bytes=0-18446744073709551615,-1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
                try:
                    client.sendall(raw)
                    client.shutdown(socket.SHUT_WR)
                    answer = b""
                    while piece := client.recv(65536):
                        answer += piece
                except ConnectionError:
                    continue  # cut off in the middle of it
                self.assertNotIn(b" 500 ", answer.split(b"\r\n")[0], raw[:80])
        self.answers(server, text)
        self.free(server)

    def test_500_connections_that_never_send(self):
        server = self.start()
        text = self.answers(server)
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(500)]
        try:
            self.answers(server, text, within=8)
        finally:
            for client in silent:
                client.close()
        self.answers(server, text, within=8)

    def test_slow_loris(self):
        # More of them than threads: 4 slots, 8 waiting, 16 others.
        server = self.start("--timeout", "2", "--queue-max", "8", "--threads-http", "1")
        text = self.answers(server)
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(40)]
        starts = [b"GET /health HTTP/1.1\r\nX-A: ", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
                  b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;"]
        stop = threading.Event()

        def trickle():
            for number, client in enumerate(clients):
                client.sendall(starts[number % 3])
            while not stop.wait(0.2):
                for client in clients:
                    try:
                        client.send(b"x")
                    except OSError:
                        pass

        slow = threading.Thread(target=trickle)
        slow.start()
        try:
            time.sleep(0.5)
            self.answers(server, text)
            deadline = time.monotonic() + 20
            left = list(clients)
            while left:  # every one is cut off
                self.assertLess(time.monotonic(), deadline, len(left))
                left = [c for c in left if not self.is_closed(c)]
                time.sleep(0.1)
        finally:
            stop.set()
            slow.join()
            for client in clients:
                client.close()
        self.answers(server, text, within=5)

    @staticmethod
    def is_closed(client):
        client.setblocking(False)
        try:
            while True:
                if not client.recv(65536):
                    return True
        except BlockingIOError:
            return False
        except OSError:
            return True

    def test_a_storm_of_disconnects(self):
        server = self.start("--queue-max", "64")
        text = self.answers(server)
        body = {whole: json.dumps(complete("Storm", max_tokens=300, ignore_eos=True, stream=not whole)).encode() for whole in (True, False)}
        for number in range(1000):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
                content = body[number % 2 == 0]
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content) + content[:len(content) - number % 3])
                if number % 51 == 0:  # some see the beginning of their answer
                    client.settimeout(0.2)
                    try:
                        client.recv(100)
                    except OSError:
                        pass
        self.free(server)
        self.answers(server, text)
        self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    program.main()
