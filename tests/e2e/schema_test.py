"""drift serve against its own description: schemathesis makes requests out of /openapi.json and judges the answers.

Bounded and seeded. Of what the description allows, at least 80 % must be answered 2xx; nothing, allowed or not, may be answered 5xx or
in a way that the description does not tell. Without schemathesis only the examples are sent.
"""

import collections
import json
import os
import re
import sys
import tempfile
import unittest

import program
from program import ProgramTest
from serve_test import Server

sys.path.insert(0, os.path.join(os.environ.get("DRIFT_DEPS") or os.path.join(program.ROOT, ".deps"), "schema"))
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.path.join(tempfile.gettempdir(), "drift-hypothesis"))  # not where we stand
try:
    import hypothesis
    import schemathesis
    from hypothesis import strategies
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS, not_a_server_error
except ImportError:
    schemathesis = None

NO_SCHEMATHESIS = "schemathesis is not there; ./dev test installs it (tools/schema-requirements.txt)"
TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools_template.jinja")
BANK = "application/vnd.sqlite3"
ALLOWED, FORBIDDEN = 20, 8  # requests of each route that the description allows, and that it does not
SEED = 6


class Description(ProgramTest):
    @classmethod
    def setUpClass(cls):
        target, draft = program.pair()
        folder = cls.enterClassContext(program.temporary_folder())
        framed = os.path.join(folder, "framed.gguf")
        program.add_chat_template(target, framed)
        os.mkdir(os.path.join(folder, "banks"))
        # A small context: where a request says nothing, answers go on to its end. Tools in a prompt of single letters need some of it.
        cls.server = Server("-m", framed, "-md", draft, "-t", "1", "-c", "4096", "-np", "4", "-n", "16", "-a", "toy",
                            "--bank-dir", os.path.join(folder, "banks"), "--chat-template-file", TEMPLATE)
        cls.addClassCleanup(cls.server.close)
        cls.server.wait_for("ready")
        cls.server.json("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 8})
        cls.bank = cls.server.bytes("/v1/drift/banks/default/export")
        cls.description = cls.server.json("GET", "/openapi.json")

    def put_back(self):
        """The bank that requests name is there again, whatever the last one did to it."""
        status, text, _ = self.server.request("PUT", "/v1/drift/banks/default", content=self.bank, headers={"Content-Type": BANK})
        self.assertEqual(status, 200, text)

    def test_every_example_is_answered(self):
        sent = 0
        for path, operations in self.description["paths"].items():
            for method, operation in operations.items():
                for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                    for body in [content["example"]] if "example" in content else [e["value"] for e in content.get("examples", {}).values()]:
                        self.put_back()
                        address = re.sub("{.*?}", "default", path)
                        status, text, _ = self.server.request(method.upper(), address, body, {"Content-Type": kind})
                        self.assertEqual(status, 200, (method, path, body, text))
                        sent += 1
        self.assertGreaterEqual(sent, 16)

    @unittest.skipIf(schemathesis is None, NO_SCHEMATHESIS)
    def test_what_is_described_is_what_happens(self):
        schemathesis.openapi.media_type(BANK, strategies.just(self.bank))
        schemathesis.serializer(BANK)(lambda context, value: value)
        schema = schemathesis.openapi.from_dict(self.description)
        base = f"http://127.0.0.1:{self.server.port}"
        counts, refused, faults = {}, collections.Counter(), []

        def send(operation, case, statuses, allowed):
            # Names in addresses are of things that are there: no description can know them.
            if allowed and case.path_parameters:
                names = {"id": "toy", "name": "default", "tenant": "default"}
                case.path_parameters.update({name: names[name] for name in case.path_parameters})
                case.query.pop("tenant", None)
                if "/v1/drift/" in operation.path:
                    self.put_back()
            response = case.call(base_url=base, timeout=300)
            statuses[response.status_code] += 1
            try:
                checks = [c for c in CHECKS.get_all() if c.__name__ in JUDGED] if allowed else [not_a_server_error]
                case.validate_response(response, checks=checks)
            except (Exception, BaseExceptionGroup) as fault:  # told all together below: one run shows everything
                faults.append(f"{operation.label}: {fault}"[:2000])
            if allowed and response.status_code >= 300:
                refused[f"{operation.label}: {response.status_code} {response.text[:200]}"] += 1

        for found in schema.get_all_operations():
            operation = found.ok()
            for mode, most in ((GenerationMode.POSITIVE, ALLOWED), (GenerationMode.NEGATIVE, FORBIDDEN)):
                statuses = counts[operation.label, mode.value] = collections.Counter()

                @hypothesis.seed(SEED)
                @hypothesis.settings(max_examples=most, deadline=None, database=None, phases=[hypothesis.Phase.generate],
                                     suppress_health_check=list(hypothesis.HealthCheck))
                @hypothesis.given(operation.as_strategy(generation_mode=mode))
                def try_out(case):
                    send(operation, case, statuses, mode == GenerationMode.POSITIVE)

                try:
                    try_out()
                except hypothesis.errors.Unsatisfiable:
                    pass  # a route without parameters has no forbidden request
        for label, statuses in counts.items():
            print("  ", *label, dict(statuses))
        for text, times in refused.most_common(20):
            print("  ", times, "x", text)
        self.assertEqual(faults, [])
        self.assertTrue(all(status < 500 for statuses in counts.values() for status in statuses), counts)
        tried = [statuses for (_, mode), statuses in counts.items() if mode == "positive"]
        self.assertEqual(len(tried), sum(len(operations) for operations in self.description["paths"].values()))
        sent = sum(sum(statuses.values()) for statuses in tried)
        answered = sum(times for statuses in tried for status, times in statuses.items() if 200 <= status < 300)
        print(f"   answered 2xx: {answered} of {sent} allowed requests ({100 * answered / sent:.1f} %)")
        self.assertGreaterEqual(answered, 0.8 * sent)


JUDGED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance")

if __name__ == "__main__":
    program.main()
