"""drift serve as its users meet it: one server over SmolLM2 as its own draft, one thread.

Refusals need no model. Where the openai package is installed it is used as it is, with strict response validation.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

import program
from program import ProgramTest, model, target

# ./dev test puts the client here; one that is installed serves as well.
DEPS = os.environ.get("DRIFT_DEPS") or os.path.join(program.ROOT, ".deps")
sys.path.insert(0, os.path.join(DEPS, "clients"))
try:
    import openai
except ImportError:
    openai = None

NO_CLIENT = "the openai client is not there; ./dev test installs it (tools/client-requirements.txt)"


class Server:
    """A running `drift serve` on a free port. Its log is read as it comes."""

    def __init__(self, *arguments, env=None, preexec=None):
        command = [os.environ["DRIFT_PROGRAM"], "serve", "--port", "0", "--log-format", "json", *arguments]
        environment = dict(os.environ, OMP_THREAD_LIMIT="1", **(env or {}))
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
                                        preexec_fn=preexec)
        self.events, self.lines = [], []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        listening = self.wait_for("listening")
        self.port = int(listening["url"].rsplit(":", 1)[1])

    def read(self):
        for raw in self.process.stderr:
            line = raw.decode()
            with self.changed:
                self.lines.append(line)
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    pass
                self.changed.notify_all()

    def wait_for(self, event, timeout=120):
        deadline = time.monotonic() + timeout
        with self.changed:
            while True:
                for entry in self.events:
                    if entry["event"] == event:
                        return entry
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"no '{event}' in the log: " + "".join(self.lines))
                self.changed.wait(0.2)

    def log(self):
        with self.changed:
            return "".join(self.lines)

    def request(self, method, path, body=None, headers=None, timeout=120, content=None):
        """Sends `body` as JSON, or `content` as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body=content if body is None else json.dumps(body), headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer
        finally:
            connection.close()

    def json(self, method, path, body=None, status=200, headers=None):
        got, text, _ = self.request(method, path, body, headers)
        assert got == status, (got, text)
        return json.loads(text)

    def bytes(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200, answer.status
            return answer.read()
        finally:
            connection.close()

    def end(self, number=signal.SIGTERM, timeout=60):
        self.process.send_signal(number)
        code = self.process.wait(timeout)
        self.reader.join(10)
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def complete(text, **more):
    return {"prompt": text, "temperature": 0, **more}


class Refusals(ProgramTest):
    def test_before_any_model_is_read(self):
        gguf = self.path("m.gguf", "x")
        self.refused(["0.0.0.0", "API key"], "serve", "-m", gguf, "--host", "0.0.0.0")
        self.refused(["--grammar", "::= is expected"], "serve", "-m", gguf, "--grammar", "x")
        self.refused(["--json-schema", "type nonsense"], "serve", "-m", gguf, "--json-schema", '{"type": "nonsense"}')
        self.refused(["--mirostat", "cannot be used here"], "serve", "-m", gguf, "--mirostat", "2")
        self.refused(["--parallel", "0"], "serve", "-m", gguf, "-np", "0")
        self.refused(["-md"], "serve", "-m", gguf, "--mode", "drift")
        self.refused(["--spec-type", "ngram-mod"], "serve", "-m", gguf, "--spec-type", "ngram-mod")
        self.refused(["--bank", "-md"], "serve", "-m", gguf, "--bank", self.path("b"))
        self.refused(["--metrics-compat", "sglang"], "serve", "-m", gguf, "--metrics-compat", "vllm,sglang")
        self.refused(["no key"], "serve", "-m", gguf, "--api-key-file", self.path("keys", "# none\n"))
        self.refused(["API key number 1"], "serve", "-m", gguf, "--api-key", "not printable \x7f")
        self.refused([":1: prot"], "serve", "-m", gguf, "--config", self.path("c.toml", "prot = 1\n"))

    def test_an_address_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.refused(["cannot listen", port], "serve", "-m", self.path("m.gguf", "x"), "--port", port, code=1)

    def test_a_model_that_is_none(self):
        done = self.refused(["-m"], "serve", "-m", self.path("m.gguf", "x"), "--port", "0", "-fa", "on")
        self.assertIn("-fa has no effect", done.stderr)


class WithModel(ProgramTest):
    """One server for all tests of a class."""

    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.gguf = model()
        cls.server = Server("-m", cls.gguf, "-md", cls.gguf, "-t", "1", "-c", "512", *cls.arguments)
        cls.server.wait_for("ready")

    @classmethod
    def tearDownClass(cls):
        cls.server.close()


class Serving(WithModel):
    arguments = ("--metrics-compat", "vllm,llamacpp", "-a", "smol,other-name", "--draft", "3")

    def test_texts_are_those_of_drift_run(self):
        done = self.worked("run", "-m", self.gguf, "-t", "1", "-c", "512", "--mode", "off", "--temp", "0", "-n", "24", "-p",
                           "Name three colours.", "--json")
        expected = json.loads(done.stdout)["text"]
        for mode in ("off", "static", "drift"):
            answer = self.server.json("POST", "/v1/chat/completions", chat("Name three colours.", max_tokens=24, logprobs=True, top_logprobs=5, drift={"mode": mode}))
            self.same_but_for_a_tie(answer["choices"][0]["logprobs"]["content"], expected, mode)
            if mode != "off":  # the model is its own draft
                self.assertGreater(answer["timings"]["draft_n_accepted"], 0)
                self.assertEqual(answer["metrics"]["speculative_decoding"]["num_spec_tokens"], 3)

    def same_but_for_a_tie(self, content, expected, mode):
        """What stands in a slot from earlier requests, and rows verified together, move floats: a near tie may fall the other way."""
        text = ""
        for step in content:
            if not expected.startswith(text + step["token"]):
                others = [t["logprob"] for t in step["top_logprobs"] if t["token"] and expected[len(text):].startswith(t["token"])]
                self.assertTrue(others and step["logprob"] - max(others) < 0.5, (mode, text, step, expected))
                return
            text += step["token"]
        self.assertEqual(text, expected, mode)

    def test_mixed_clients_get_what_they_would_get_alone(self):
        prompts = [f"Count to {n}." for n in ("three", "five", "seven", "nine", "ten", "twelve", "two", "eight")]
        body = [chat(p, max_tokens=16, logprobs=True, top_logprobs=5, drift={"mode": m}) for p, m in zip(prompts, ["off", "static", "drift", "off"] * 2)]

        def tokens(b):
            return self.server.json("POST", "/v1/chat/completions", b)["choices"][0]["logprobs"]["content"]

        alone = [tokens(b) for b in body]
        together = [None] * len(body)

        def ask(i):
            together[i] = tokens(body[i])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(body))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Batch shape moves floats, so a near tie may fall the other way. Where texts part, it was one.
        same = 0
        for a, b in zip(alone, together):
            parted = next((i for i, (x, y) in enumerate(zip(a, b)) if x["token"] != y["token"]), None)
            if parted is None:
                self.assertEqual(len(a), len(b))
                same += 1
                continue
            others = {x["token"]: x["logprob"] for x in a[parted]["top_logprobs"]}
            self.assertLess(a[parted]["logprob"] - others.get(b[parted]["token"], -99), 0.5, (parted, a[parted], b[parted]))
        self.assertGreaterEqual(same, 4)

    def test_logprobs_do_not_depend_on_drafting(self):
        def logprobs(mode):
            body = complete("The capital of France is", max_tokens=8, logprobs=3, drift={"mode": mode})
            return self.server.json("POST", "/v1/completions", body)["choices"][0]["logprobs"]

        plain, drafted = logprobs("off"), logprobs("static")
        self.assertEqual(plain["tokens"], drafted["tokens"])
        for a, b in zip(plain["token_logprobs"], drafted["token_logprobs"]):
            self.assertAlmostEqual(a, b, delta=0.05)
            self.assertLessEqual(a, 0)

    def test_tokens_and_back(self):
        tokens = self.server.json("POST", "/tokenize", {"content": "Héllo wörld"})["tokens"]
        self.assertEqual(self.server.json("POST", "/detokenize", {"tokens": tokens})["content"], "Héllo wörld")
        prompt = self.server.json("POST", "/apply-template", {"messages": [{"role": "user", "content": "hi"}]})["prompt"]
        self.assertIn("<|im_start|>user\nhi<|im_end|>", prompt)

    def test_control_tokens_are_not_shown(self):
        answer = self.server.json("POST", "/v1/chat/completions", chat("Say hi.", max_tokens=32))
        self.assertNotIn("<|im_end|>", answer["choices"][0]["message"]["content"])

    def test_an_oversized_prompt_is_told_in_numbers(self):
        error = self.server.json("POST", "/v1/completions", complete("word " * 2000), status=400)["error"]
        self.assertEqual(error["type"], "exceed_context_size_error")
        self.assertEqual(error["n_ctx"], 512)

    def test_names(self):
        self.assertEqual(self.server.json("GET", "/v1/models")["data"][0]["id"], "smol")
        self.assertEqual(self.server.json("GET", "/v1/models/other-name")["id"], "smol")

    def test_metrics(self):
        self.server.json("POST", "/v1/completions", complete("Hello", max_tokens=8))
        _, text, _ = self.server.request("GET", "/metrics")
        for name in ("drift_generated_tokens_total ", 'vllm:spec_decode_num_drafts_total{model_name="smol"', "llamacpp:tokens_predicted_total "):
            self.assertIn("\n" + name, text)
        checker = shutil.which("promtool", path=os.pathsep.join((os.environ["PATH"], os.path.join(DEPS, "promtool"))))
        if checker is None:
            print("SKIPPED: no promtool to check /metrics with (Debian: prometheus; ./dev test fetches it)")
            return
        canonical, keep = [], True
        for line in text.splitlines():  # other servers' names have colons, which promtool does not like
            if line.startswith("# HELP"):
                keep = line.split()[2].startswith("drift_")
            if keep:
                canonical.append(line)
        done = subprocess.run([checker, "check", "metrics"], input="\n".join(canonical) + "\n", capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    @unittest.skipIf(openai is None, NO_CLIENT)
    def test_the_openai_client_strictly(self):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none", _strict_response_validation=True, timeout=120)
        self.assertEqual([m.id for m in client.models.list()], ["smol"])
        self.assertEqual(client.models.retrieve("smol").id, "smol")
        messages = [{"role": "user", "content": "Name three colours."}]
        whole = client.chat.completions.create(model="smol", messages=messages, max_tokens=16, temperature=0, logprobs=True, top_logprobs=2)
        text = whole.choices[0].message.content
        self.assertEqual(len(whole.choices[0].logprobs.content), whole.usage.completion_tokens)
        chunks = list(client.chat.completions.create(model="smol", messages=messages, max_tokens=16, temperature=0, stream=True,
                                                     stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), text)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], [whole.choices[0].finish_reason])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertGreater(len(chunks[-1].metrics["speculative_decoding"]["acceptance_histogram"]), 0)
        told = list(client.chat.completions.create(model="smol", messages=messages, max_tokens=16, temperature=0, stream=True,
                                                   extra_body={"drift": {"mode": "static", "origins": True}}))
        origins = [token["origin"] for c in told for token in (getattr(c.choices[0], "drift", None) or {"tokens": []})["tokens"]]
        self.assertEqual(len(origins), whole.usage.completion_tokens)
        self.assertIn("accepted", origins)
        legacy = client.completions.create(model="smol", prompt="The capital of France is", max_tokens=4, temperature=0, n=2, logprobs=2)
        self.assertEqual(len(legacy.choices), 2)
        self.assertEqual(len(legacy.choices[0].logprobs.tokens), 4)
        with self.assertRaises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="smol", messages=messages, temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("nothing")

    @unittest.skipIf(openai is None, NO_CLIENT)
    def test_the_openai_client_asynchronously(self):
        import asyncio

        async def ask():
            async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none",
                                          _strict_response_validation=True, timeout=120) as client:
                async def one(n):
                    stream = await client.chat.completions.create(model="smol", messages=[{"role": "user", "content": f"Say {n}."}],
                                                                  max_tokens=8, stream=True)
                    return [c async for c in stream][-1].choices[0].finish_reason

                return await asyncio.gather(*(one(n) for n in range(4)))

        self.assertTrue(all(reason in ("stop", "length") for reason in asyncio.run(ask())))


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}}, "required": ["city", "unit"]}}}


class Forms(WithModel):
    """Answers of a form: schemas, grammars, calls of tools."""

    arguments = ("--draft", "3", "--chat-template-file", os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools_template.jinja"))

    def test_a_schema_holds_and_drafts_are_accepted(self):
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 120},
                                                   "city": {"enum": ["Oslo", "Rome"]}}, "required": ["name", "age", "city"]}
        for mode in ("off", "static"):
            answer = self.server.json("POST", "/v1/chat/completions", chat("A person as JSON.", max_tokens=100, temperature=1, seed=5, drift={"mode": mode},
                                      response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}))
            self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
            person = json.loads(answer["choices"][0]["message"]["content"])
            self.assertEqual(list(person), ["name", "age", "city"])
            self.assertTrue(1 <= person["age"] <= 120 and person["city"] in ("Oslo", "Rome") and len(person["name"]) <= 12, person)
            self.assertEqual(answer["timings"].get("draft_n_accepted", 0) > 0, mode == "static")
        answer = self.server.json("POST", "/completion", complete("Yes or no? ", grammar='root ::= "yes" | "no"'))
        self.assertIn(answer["content"], ("yes", "no"))

    def test_what_cannot_be_used_is_a_400_with_the_field(self):
        place = "response_format.json_schema.schema"
        for schema in ({"type": "nonsense"}, {"$ref": "#"}, {"pattern": "a+"}, {"type": "string", "maxLength": 2000000000},
                       {"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]}, {"enum": ["x"] * 20000}):
            body = chat("x", response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
            self.assertEqual(self.server.json("POST", "/v1/chat/completions", body, status=400)["error"]["param"], place)
        for grammar in ("root ::= root", "root ::= " + "(" * 100000, 'root ::= "a"{99999999}'):
            self.assertEqual(self.server.json("POST", "/completion", complete("x", grammar=grammar), status=400)["error"]["param"], "grammar")

    @unittest.skipIf(openai is None, NO_CLIENT)
    def test_tools_with_the_openai_client(self):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none", _strict_response_validation=True, timeout=120)
        ask = dict(model="smol", messages=[{"role": "user", "content": "Weather in Rome?"}], tools=[WEATHER], tool_choice="required",
                   temperature=0, max_tokens=60)
        whole = client.chat.completions.create(**ask)
        call = whole.choices[0].message.tool_calls[0]
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(set(json.loads(call.function.arguments)), {"city", "unit"})
        chunks = list(client.chat.completions.create(stream=True, **ask))
        deltas = [d for c in chunks if c.choices for d in c.choices[0].delta.tool_calls or [] if d.index == 0]
        self.assertEqual(deltas[0].function.name, "get_weather")
        self.assertEqual("".join(d.function.arguments for d in deltas), call.function.arguments)
        self.assertGreater(len(deltas), 2)


class Lives(ProgramTest):
    """Starting, draining, banks. On SmolLM2 where a chat template is needed, or an answer that takes a while."""

    def start(self, *arguments, env=None, gguf=None):
        gguf = gguf or target()
        server = Server("-m", gguf, "-md", gguf, "-t", "1", "-c", "512", *arguments, env=env)
        self.addCleanup(server.close)
        return server

    def test_before_ready_and_after_sigterm(self):
        server = self.start("-np", "2", gguf=model())  # an answer that takes seconds, for there must be time to ask
        status, _, answer = server.request("GET", "/health")
        if status == 503:  # still loading
            self.assertEqual(answer.getheader("Retry-After"), "1")
        server.wait_for("ready")
        self.assertEqual(server.json("GET", "/ready")["status"], "ready")
        self.assertEqual(server.json("GET", "/props")["total_slots"], 2)
        self.assertEqual(server.json("GET", "/props")["default_generation_settings"]["n_ctx"], 256)
        got = {}

        def ask():
            got["answer"] = server.json("POST", "/v1/completions", complete("Once upon a time", max_tokens=100, ignore_eos=True))

        asking = threading.Thread(target=ask)
        asking.start()
        while not any(slot["is_processing"] for slot in server.json("GET", "/slots")):
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        server.json("GET", "/ready", status=503)
        server.json("POST", "/v1/completions", complete("late", max_tokens=1), status=503)
        asking.join(120)
        self.assertEqual(got["answer"]["usage"]["completion_tokens"], 100)
        self.assertEqual(server.process.wait(60), 0)

    def test_a_second_signal_ends_at_once(self):
        server = self.start("--shutdown-timeout", "600", gguf=model())
        server.wait_for("ready")
        threading.Thread(target=lambda: self.swallow(server), daemon=True).start()
        while not any(slot["is_processing"] for slot in server.json("GET", "/slots")):
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        time.sleep(0.7)  # one wish to stop may come twice within half a second
        self.assertIsNone(server.process.poll())
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(20), 130)

    @staticmethod
    def swallow(server):
        try:
            server.request("POST", "/v1/completions", complete("Once", max_tokens=400, ignore_eos=True))
        except OSError:
            pass  # the server ended in the middle of it
        except http.client.HTTPException:
            pass

    def test_the_bank_survives(self):
        bank = self.path("x.bank")
        server = self.start("--bank", bank)
        server.wait_for("ready")
        ask = complete("Tell me about the sea.", max_tokens=40)
        first = server.json("POST", "/v1/completions", ask)
        entries = server.json("GET", "/v1/drift/state")["banks"][0]["entries"]
        self.assertGreater(entries, 0)
        self.assertEqual(server.end(), 0)
        shown = json.loads(self.worked("bank", "show", bank, "--json").stdout)
        self.assertEqual(shown["entries"], entries)
        again = self.start("--bank", bank, "--bank-ro")
        again.wait_for("ready")
        self.assertEqual(again.json("GET", "/v1/drift/state")["banks"][0]["entries"], entries)
        second = again.json("POST", "/v1/completions", ask)
        self.assertEqual(second["choices"], first["choices"])
        self.assertEqual(again.end(), 0)

    def test_banks_of_other_names(self):
        server = self.start("--bank-dir", self.folder.name, "--bank-save-interval", "1")
        server.wait_for("ready")
        server.json("POST", "/v1/completions", complete("Law", max_tokens=20, drift={"bank": "law"}))
        deadline = time.monotonic() + 30
        while not os.path.exists(self.path("law.bank")) or os.path.getsize(self.path("law.bank")) == 0 or not any(
                b["name"] == "law" and b["saves"] > 0 for b in server.json("GET", "/v1/drift/state")["banks"]):
            self.assertLess(time.monotonic(), deadline, server.json("GET", "/v1/drift/state"))
            time.sleep(0.1)
        server.json("POST", "/v1/completions", complete("x", drift={"bank": "../x"}), status=400)
        self.assertEqual(server.end(), 0)
        self.worked("bank", "verify", self.path("law.bank"))

    def test_keys_settings_and_the_log(self):
        keys = self.path("keys", "# keys\nsecret-key\n")
        config = self.path("serve.toml", f"api-key-file = '{keys}'\nctx-size = 256\nmode = 'static'\n")
        server = self.start("--config", config, "--temp", "0", env={"DRIFT_ALIAS": "by-variable"})
        server.wait_for("ready")
        server.json("GET", "/v1/models", status=401)
        headers = {"Authorization": "Bearer secret-key"}
        self.assertEqual(server.json("GET", "/v1/models", headers=headers)["data"][0]["id"], "by-variable")
        props = server.json("GET", "/props", headers=headers)
        self.assertEqual((props["mode"], props["default_generation_settings"]["n_ctx"]), ("static", 512))
        server.json("POST", "/v1/completions", complete("do not log me", max_tokens=2), headers=headers)
        server.wait_for("answered")
        self.assertNotIn("secret-key", server.log())
        self.assertNotIn("do not log me", server.log())
        self.assertEqual(server.end(signal.SIGINT), 0)

    def test_keys_are_read_again(self):
        keys = self.path("keys", "old-key\n")
        server = self.start("--api-key-file", keys)
        server.wait_for("ready")

        def known():
            return [key for key in ("old-key", "new-key", "boss-key") if server.request("GET", "/v1/models", headers={"X-Api-Key": key})[0] == 200]

        self.assertEqual(known(), ["old-key"])
        self.path("keys", "new-key law king\n")
        server.process.send_signal(signal.SIGHUP)
        self.assertIn("line 1", server.wait_for("the API keys stay as they are")["why"])
        self.assertEqual(known(), ["old-key"])
        self.path("keys", "boss-key\nnew-key law share\n")
        self.assertEqual(server.wait_for("API keys were read again")["keys"], 2)  # without a signal
        self.assertEqual(known(), ["new-key", "boss-key"])
        law = {"X-Api-Key": "new-key"}
        server.json("POST", "/v1/completions", complete("The sea is", max_tokens=4), headers=law)
        self.assertEqual([b["shared"] for b in server.json("GET", "/v1/drift/banks", headers=law)["data"]], [True])
        self.assertNotIn("-key", server.log().replace("api-key", ""))
        self.assertEqual(server.end(), 0)

    def test_tenants(self):
        keys = self.path("keys", "boss\nka law\nkb med\n")
        os.mkdir(self.path("banks"))
        server = self.start("--api-key-file", keys, "--bank-dir", self.path("banks"), gguf=model())
        server.wait_for("ready")

        def call(method, path, key, body=None, status=200):
            return server.json(method, path, body, status=status, headers={"Authorization": f"Bearer {key}"})

        call("POST", "/v1/chat/completions", "ka", chat("What is a contract?", max_tokens=24))
        call("POST", "/v1/chat/completions", "kb", chat("What is a fever?", max_tokens=24))
        self.assertEqual([b["tenant"] for b in call("GET", "/v1/drift/banks", "ka")["data"]], ["law"])
        self.assertEqual(len(call("GET", "/v1/drift/banks", "boss")["data"]), 3)
        call("DELETE", "/v1/drift/tenants/med", "ka", status=403)
        self.assertEqual(call("DELETE", "/v1/drift/tenants/med", "boss")["banks"], 1)
        self.assertEqual(os.listdir(self.path("banks/tenants")), ["law"])
        call("POST", "/v1/chat/completions", "ka", chat("What is a contract?", max_tokens=8, cache_salt="case 12"))
        part = next(b["name"] for b in call("GET", "/v1/drift/banks", "ka")["data"] if b["name"] != "default")
        self.assertRegex(part, "^default~[0-9a-f]{32}$")
        self.assertEqual(server.end(), 0)
        self.assertEqual(sorted(os.listdir(self.path("banks/tenants/law"))), ["default.bank", part + ".bank"])
        self.worked("bank", "verify", self.path("banks/tenants/law/default.bank"))

    def test_a_bank_goes_out_when_others_need_the_room_and_comes_back(self):
        os.mkdir(self.path("banks"))
        server = self.start("--bank-dir", self.path("banks"), "--banks-per-tenant", "2")
        server.wait_for("ready")

        def ask(bank):
            server.json("POST", "/v1/completions", complete("The sea is", max_tokens=24, drift={"bank": bank}))
            return {b["name"]: b for b in server.json("GET", "/v1/drift/banks")["data"]}

        entries = ask("a")["a"]["entries"]
        self.assertGreater(entries, 0)
        self.assertEqual({n for n, b in ask("b").items() if b["open"]}, {"a", "b"})
        banks = ask("c")
        self.assertEqual({n for n, b in banks.items() if b["open"]}, {"b", "c"})
        self.assertIn("a", banks, "its file is listed")
        self.assertGreaterEqual(ask("a")["a"]["entries"], entries)
        self.assertEqual(server.end(), 0)

    def test_a_bank_of_another_pair_is_named_and_left_alone(self):
        target, draft = program.pair()
        if target == model():
            self.skipTest("there is no other pair than SmolLM2")
        bank = self.path("others.bank")
        self.worked("run", "-m", target, "-md", draft, "-t", "1", "-p", "Hello", "-n", "8", "--bank", bank)
        before = program.read(bank)
        server = self.start("--bank", bank)
        server.wait_for("ready")
        self.assertIn("others.bank", server.wait_for("a bank is not saved")["why"])
        server.json("POST", "/v1/completions", complete("Law", max_tokens=20))
        shown = server.json("GET", "/v1/drift/banks")["data"][0]
        self.assertGreater(shown["entries"], 0)
        self.assertFalse(shown["file"])
        self.assertIn("another pair", shown["memory_only"])
        self.assertEqual(server.end(), 0)
        self.assertEqual(program.read(bank), before)

    def test_killed_under_load(self):
        bank = self.path("x.bank")
        server = self.start("--bank", bank, "--bank-save-interval", "1", gguf=model())
        server.wait_for("ready")
        threading.Thread(target=self.swallow, args=(server,), daemon=True).start()
        deadline = time.monotonic() + 60
        while server.json("GET", "/v1/drift/banks")["data"][0]["saves"] < 2:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        server.process.kill()
        server.process.wait()
        self.worked("bank", "verify", bank)
        snapshot = program.read(bank)
        again = self.start("--bank", bank, gguf=model())
        again.wait_for("ready")
        self.assertGreater(again.json("GET", "/v1/drift/banks")["data"][0]["entries"], 0)
        self.assertEqual(again.bytes("/v1/drift/banks/default/export"), snapshot, "what was loaded is what was saved")
        self.assertEqual(again.end(), 0)

    def test_plain_without_a_draft(self):
        gguf = target()
        server = Server("-m", gguf, "-t", "1", "-c", "256", "-np", "1")
        self.addCleanup(server.close)
        server.wait_for("ready")
        answer = server.json("POST", "/completion", {"prompt": "Hello", "n_predict": 4, "temperature": 0})
        self.assertEqual(answer["timings"]["predicted_n"], 4)
        self.assertNotIn("draft_n", answer["timings"])
        self.assertEqual(server.json("POST", "/v1/completions", complete("x", drift={"mode": "static"}), status=400)["error"]["param"], "drift.mode")
        self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    program.main()
