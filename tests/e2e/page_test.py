"""The page at / of drift serve, in Debian's Chromium: draws what the server says, light, dark and on a phone, with and without a key.

Needs the program chromium (CHROMIUM names another one) and Python's playwright, of which only the driver is used; skipped aloud without.
Leaves page-light.png, page-dark.png, page-narrow.png and page-tenants.png in the folder that DRIFT_SHOTS names; ctest sets it to the build folder's page/.
"""

import json
import os
import shutil
import sys
import threading
import unittest

import program
from program import ProgramTest
from serve_test import Server, complete

# The package is looked for here; one that is installed serves as well.
sys.path.insert(0, os.path.join(os.environ.get("DRIFT_DEPS") or os.path.join(program.ROOT, ".deps"), "browser"))
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

NO_PLAYWRIGHT = "python's playwright is not there (pip install --target .deps/browser playwright: 46 MB, no browser is downloaded)"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
PROMPT = "The tenant shall pay the rent on the first day of"


@unittest.skipIf(sync_playwright is None, NO_PLAYWRIGHT)
@unittest.skipIf(CHROMIUM is None, "there is no chromium (Debian: apt-get install chromium)")
class Page(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # CI runs as root
        target, draft = program.pair()
        cls.shots = os.environ.get("DRIFT_SHOTS") or os.getcwd()
        cls.server = Server("-m", target, "-md", draft, "-t", "1", "-np", "2", "-c", "1024")
        cls.server.wait_for("ready")

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.browser.close()
        cls.playwright.stop()

    def open(self, server=None, width=1280, height=900, scheme="light"):
        """A page whose every fault and every request to elsewhere is noted."""
        context = self.browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(60_000)
        home = f"http://127.0.0.1:{(server or self.server).port}/"
        page.faults, page.elsewhere = [], []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
        page.on("request", lambda r: None if r.url.startswith((home, "data:")) else page.elsewhere.append(r.url))
        page.goto(home)
        return page

    def wait_for_text(self, page, selector, text):
        page.locator(selector, has_text=text).wait_for()

    def ask(self, page, mode, tokens=60):
        page.fill("#prompt", PROMPT)
        page.fill("#tokens", str(tokens))
        page.select_option("#mode", mode)
        page.click("#go")  # which empties the figures at once
        self.wait_for_text(page, "#figures", "tokens in")
        page.locator("#go:not([disabled])").wait_for()

    def number(self, page, selector):
        return int(page.locator(selector).text_content().replace("\u202f", ""))

    def traffic(self):
        """Drafted answers of three kinds, two at once."""
        def client(mode, bank):
            for text in ("The court held that the", "The patient was given", "It was nearly dark when"):
                self.server.json("POST", "/v1/completions", complete(text, max_tokens=60, ignore_eos=True, drift={"mode": mode, **bank}))

        threads = [threading.Thread(target=client, args=a) for a in (("drift", {}), ("static", {}))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_it_draws_what_the_server_says_in_every_look(self):
        page = self.open()
        self.wait_for_text(page, "#status", "up ")
        self.wait_for_text(page, "#speedup-note", "not measured")
        self.assertEqual(page.locator("#speedup").text_content(), "–")
        self.ask(page, "off")  # plain steps: now there is something to compare with
        self.assertEqual(self.number(page, "#n-target"), 60)
        self.assertEqual(self.number(page, "#n-accepted") + self.number(page, "#n-rejected"), 0)
        plain = page.locator("#answer").text_content()
        self.traffic()
        self.ask(page, "drift")
        # The text is the same but for the rejected proposals in it, and every token has its colour.
        drafted = page.evaluate("""() => [...document.querySelectorAll("#answer > span")].map((e) => e.textContent).join("")""")
        if drafted != plain:
            print("the texts differ by a near tie:", repr(plain), repr(drafted))
        self.assertTrue(drafted.startswith(PROMPT))
        counts = {kind: self.number(page, "#n-" + kind) for kind in ("target", "accepted", "accepted_bank", "rejected")}
        self.assertEqual(counts["target"] + counts["accepted"] + counts["accepted_bank"], 60)
        self.assertGreater(counts["accepted"], 0)
        self.assertEqual(page.locator("#answer .o-accepted").count(), counts["accepted"])
        self.assertIn("proposals accepted", page.locator("#figures").text_content())
        page.locator("#speedup", has_text="×").wait_for()
        state = self.server.json("GET", "/v1/drift/state?history=recent")
        # What stands in the table is the server's.
        row = page.locator("#banks tr").first
        self.assertEqual(row.locator("td").first.text_content(), "default")
        row.locator("td", has_text=f"{state['banks'][0]['entries']:,} of".replace(",", "\u202f")).wait_for()
        self.assertEqual(page.locator("#acceptance-chart path.line").count(), 2)
        self.assertEqual(page.locator("#acceptance-legend li").count(), 2)
        self.assertEqual(page.locator("#positions rect.bar").count(), 3)
        self.assertEqual(page.locator("#slots .slot").count(), 2)
        page.locator("#acceptance-chart").hover()
        page.locator("#acceptance-chart line.cross").wait_for(state="attached")
        page.click("text=since the start")
        self.wait_for_text(page, "#acceptance-chart", "ago")
        self.assertEqual(page.faults, [])
        self.assertEqual(page.elsewhere, [])
        for name, width, scheme in (("light", 1280, "light"), ("dark", 1280, "dark"), ("narrow", 390, "light")):
            page = self.open(width=width, height=844, scheme=scheme)
            self.wait_for_text(page, "#status", "up ")
            self.ask(page, "drift")
            page.locator("#acceptance-chart path.line").first.wait_for(state="attached")  # a flat line has no height and is not "visible"
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width, "nothing hangs over the side")
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            light = sum(int(part) for part in background[4:-1].split(",")) > 384
            self.assertEqual(light, scheme == "light", background)
            page.screenshot(path=os.path.join(self.shots, f"page-{name}.png"), full_page=True)
            self.assertEqual(page.faults, [])

    def test_operators_freeze_export_and_empty_a_tenants_bank(self):
        target, draft = program.pair()
        keys = self.path("keys", "boss\nka law share\nkb med\n")
        server = Server("-m", target, "-md", draft, "-t", "1", "-np", "1", "-c", "256", "--api-key-file", keys)
        self.addCleanup(server.close)
        server.wait_for("ready")
        for key in ("ka", "kb"):
            headers = {"Authorization": "Bearer " + key}
            server.json("POST", "/v1/completions", complete(PROMPT, max_tokens=60, ignore_eos=True), headers=headers)

        def of(tenant):
            banks = server.json("GET", "/v1/drift/banks?tenant=" + tenant, headers={"Authorization": "Bearer boss"})
            return banks["data"][0]

        page = self.open(server)
        page.locator("#key-form").wait_for()
        page.fill("#key", "boss")
        page.press("#key", "Enter")
        self.wait_for_text(page, "#status", "up ")
        page.faults.clear()  # the browser notes that it was asked for a key
        self.wait_for_text(page, "#banks tr.tenant", "law: acceptance ")
        self.wait_for_text(page, "#banks tr.tenant", "med: acceptance ")
        self.assertEqual(page.locator("#acceptance-legend li").all_text_contents()[0][:3], "law", "a curve for each tenant")
        law = page.locator("#banks tr", has=page.get_by_label("reset law/default"))
        self.wait_for_text(page, "#banks .said", "shared")
        self.assertEqual(law.locator(".said").text_content(), "shared")
        law.get_by_role("button", name="freeze").click()
        self.wait_for_text(page, "#banks-said", "law/default is frozen")
        self.assertTrue(of("law")["frozen"])
        page.screenshot(path=os.path.join(self.shots, "page-tenants.png"), full_page=True)
        law.get_by_role("button", name="thaw").click()
        self.wait_for_text(page, "#banks-said", "law/default learns again")
        self.assertFalse(of("law")["frozen"])
        with page.expect_download() as begun:
            law.get_by_role("button", name="export").click()
        self.assertEqual(begun.value.suggested_filename, "law-default.bank")
        with open(begun.value.path(), "rb") as exported:
            self.assertEqual(exported.read(15), b"SQLite format 3")
        entries = of("law")["entries"]
        self.assertGreater(entries, 0)
        asked = []
        page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        law.get_by_role("button", name="reset").click()
        self.assertIn(f"{entries} entries", asked[0])
        self.assertEqual(of("law")["entries"], entries, "nothing happens without a yes")
        page.once("dialog", lambda dialog: dialog.accept())
        law.get_by_role("button", name="reset").click()
        self.wait_for_text(page, "#banks-said", "law/default is empty")
        self.assertEqual(of("law")["entries"], 0)
        self.assertGreater(of("med")["entries"], 0)
        page.route("**/freeze*", lambda route: route.fulfill(status=409, json={"error": {"message": "<b>answers use it</b>"}}))
        law.get_by_role("button", name="freeze").click()
        self.wait_for_text(page, "#banks-said.error", "could not be done: <b>answers use it</b>")
        narrow = self.open(server, width=390)
        narrow.fill("#key", "boss")
        narrow.press("#key", "Enter")
        self.wait_for_text(narrow, "#status", "up ")
        self.assertLessEqual(narrow.evaluate("document.documentElement.scrollWidth"), 390, "nothing hangs over the side")

    def test_what_a_model_or_a_client_says_is_text(self):
        page = self.open()
        evil = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>"
        self.wait_for_text(page, "#status", "up ")
        page.fill("#prompt", evil)
        page.fill("#tokens", "4")
        page.click("#go")
        self.wait_for_text(page, "#figures", "tokens in")
        self.assertTrue(page.locator("#answer").text_content().startswith(evil))
        self.assertEqual(page.locator("#answer img, #answer b").count(), 0)
        # A name the server would never give, and a token that is markup.
        state = self.server.json("GET", "/v1/drift/state?history=recent")
        state["banks"] = [dict(state["banks"][0], name=evil)] if state["banks"] else []
        state["model"] = evil
        state["history"]["shifts"] = [{"at_s": state["history"]["now_s"], "tenant": evil, "acceptance_now": 0.2, "acceptance_before": 0.7}]
        page.route("**/v1/drift/state*", lambda route: route.fulfill(json=state))
        token = {"id": 1, "token": evil, "bytes": list(evil.encode()), "origin": "accepted<b>", "rejected": [{"id": 2, "token": evil, "bytes": list(evil.encode())}]}
        event = "data: " + json.dumps({"choices": [{"index": 0, "text": evil, "drift": {"tokens": [token]}}]}) + "\n\ndata: [DONE]\n\n"
        page.route("**/v1/completions", lambda route: route.fulfill(content_type="text/event-stream", body=event))
        page.click("#go")
        self.wait_for_text(page, "#shifts", "fell from")
        page.locator("#answer del").wait_for()
        self.assertEqual(page.locator("main img, header img, #answer b, #banks b, #shifts b").count(), 0)
        self.assertEqual(page.locator("#acceptance-chart line.shift").count(), 1)
        self.assertTrue(page.title().startswith("<img"))
        self.assertEqual(page.faults, [])

    def test_a_key_is_asked_for_and_kept_in_memory_only(self):
        target, draft = program.pair()
        server = Server("-m", target, "-md", draft, "-t", "1", "-np", "1", "-c", "256", "--api-key-file", self.path("keys", "secret-key\n"))
        self.addCleanup(server.close)
        server.wait_for("ready")
        page = self.open(server)
        page.locator("#key-form").wait_for()
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        self.wait_for_text(page, "#key-error", "does not know")
        page.fill("#key", "secret-key")
        page.press("#key", "Enter")
        self.wait_for_text(page, "#status", "up ")
        self.assertFalse(page.locator("#key-form").is_visible())
        self.ask(page, "static", tokens=8)
        self.wait_for_text(page, "#figures", "tokens in")
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, document.body.innerHTML])")
        self.assertNotIn("secret-key", kept)
        page.reload()
        page.locator("#key-form").wait_for()  # and is asked for again

    def test_a_server_that_goes_is_told(self):
        target, draft = program.pair()
        server = Server("-m", target, "-md", draft, "-t", "1", "-np", "1", "-c", "256")
        self.addCleanup(server.close)
        server.wait_for("ready")
        page = self.open(server)
        self.wait_for_text(page, "#status", "up ")
        server.end()
        self.wait_for_text(page, "#status", "cannot be reached")


if __name__ == "__main__":
    program.main()
